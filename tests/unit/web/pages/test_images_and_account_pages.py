"""The page of images, and that of one's account."""

import html
import re
from dataclasses import replace
from unittest.mock import Mock

import pytest
import yaml

from muster.core.images.committed import CommittedImage
from muster.core.model.token import Scope
from muster.core.values.errors import AgentUnreachableError
from muster.service.images import removal
from tests.strategies.agents import make_agent, reporting
from tests.strategies.values import NOW, new_id

OLD, NEW = ("sha256:" + digit * 64 for digit in "12")


@pytest.fixture
def catalog(tmp_path):
    images = [
        {
            "name": "torch",
            "versions": {"2.8": "docker.io/lab/torch:2.8", "2.9": "docker.io/lab/torch:2.9"},
            "default": "2.9",
            "aliases": ["pt"],
            "description": "<b>deep</b> learning",
            "minimum": {"mem": "4G", "fgpu": 0.5},
        },
        {"name": "plain", "reference": "docker.io/lab/plain"},
        {"name": "for-eve", "reference": "docker.io/lab/secret", "users": ["eve"]},
    ]
    (tmp_path / "images.yml").write_text(yaml.safe_dump({"images": images}), encoding="utf-8")


def holding(agent_id, tag, image_id, size):
    agent = make_agent(agent_id)
    images = [{"id": image_id, "tags": [tag], "size_bytes": size}]
    return reporting(agent, images=images)


def words(text):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


@pytest.mark.usefixtures("catalog")
def test_images_are_listed_with_their_versions_and_lead_to_launch(browser, service):
    service.store.agents.save(
        [holding("a1", "lab/torch:2.9", OLD, 3 << 30), holding("a2", "lab/torch:2.9", NEW, 1 << 30), make_agent("a3")]
    )
    text = browser("ada").get("/images").text
    assert re.findall(r'<h2 id="image-\d+">([^<]+)</h2>', text) == ["torch", "plain"]
    rows = [words(row) for row in re.findall(r"<tbody>(.*?)</tbody>", text, re.DOTALL)[0].split("</tr>")[:-1]]
    assert [row.split()[0] for row in rows] == ["2.8", "2.9"]
    assert "default version" in rows[1]
    for fact in ("pt", "4 GiB memory, 0.5 fGPU", "3 GiB", "2 of 3 a1, a2", "2 different builds", "everybody"):
        assert fact in rows[1]
    assert "0 of 3" in rows[0]
    links = [html.unescape(link) for link in re.findall(r'href="(/launch\?[^"]+)"', text)]
    assert links == ["/launch?image=torch%3A2.8", "/launch?image=torch", "/launch?image=plain"]
    assert "<b>deep" not in text


@pytest.mark.usefixtures("catalog")
def test_images_for_others_are_not_there(browser):
    assert "for-eve" not in browser("ada").get("/images").text
    assert "for-eve" in browser("eve").get("/images").text


def test_a_site_without_a_catalog_says_what_to_do(browser):
    assert "The catalog has no images yet." in browser("ada").get("/images").text


@pytest.mark.usefixtures("catalog")
def test_a_token_that_only_reads_gets_no_link_to_launch(browser):
    reader = browser("ada", Scope.READ)
    assert "/launch?image" not in reader.get("/images").text
    part = reader.get("/images", headers={"HX-Request": "true"}).text
    assert "torch" in part
    assert "<html" not in part


def test_an_author_removes_what_they_committed(browser, service, monkeypatch):
    service.store.agents.save([make_agent("a1")])
    for owner in ("ada", "eve"):
        made = CommittedImage(f"lab/{owner}", "1", owner, public=True, message="", parent="busybox", parent_id=OLD,
                              session_id=new_id(1), session_name="s1", kernel_name="sub1", agent_id="a1",
                              architecture="x86_64", created_at=NOW)  # fmt: skip
        service.store.images.claim(made)
        service.store.images.made(replace(made, image_id=NEW, size_bytes=1))
    ada = browser("ada")
    offered = r'name="image" value="([^"]+)"'
    assert re.findall(offered, ada.get("/images").text) == ["lab/ada:1"]
    assert re.findall(offered, browser("ada", Scope.READ).get("/images").text) == []
    assert re.findall(offered, browser("root", Scope.ADMIN).get("/images").text) == ["lab/ada:1", "lab/eve:1"]
    away = AgentUnreachableError("agent a1 does not answer")
    monkeypatch.setattr(removal, "remove", Mock(side_effect=[away, True]))
    htmx = {"HX-Request": "true"}
    still = ada.post("/images/remove", data={"image": "lab/ada:1"}, headers=htmx)
    assert "lab/ada:1 is still on a1" in still.headers["HX-Trigger"]
    gone = ada.post("/images/remove", data={"image": "lab/ada:1"}, headers=htmx)
    assert "lab/ada:1 is removed" in gone.headers["HX-Trigger"]
    assert "lab/ada" not in ada.get("/images").text
    assert ada.post("/images/remove", data={"image": "lab/eve:1"}, headers=htmx).status_code == 409


@pytest.mark.parametrize(
    ("scope", "may"),
    [(Scope.ADMIN, "everything"), (Scope.USER, "your own sessions and folders"), (Scope.READ, "changes nothing")],
)
def test_the_account_shows_the_user_and_their_rights(browser, scope, may):
    text = browser("ada", scope, name="laptop").get("/account").text
    for fact in ("ada", "laptop", may, "never", "Using a token"):
        assert fact in words(text)
    assert '<form method="post" action="/sign-out">' in text


def test_the_account_says_when_the_token_expires_and_nothing_secret(browser, service):
    token, secret = service.service.tokens.create("short", "o'ada <b>", Scope.USER, "2h")
    page = browser("eve", sign_in=False)
    page.post("/sign-in", data={"token": secret})
    text = page.get("/account").text
    assert re.search(r"Expires \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", words(text))
    assert secret not in text
    assert "<b>" not in text
    assert "o'ada <b>" in html.unescape(text)
    assert token.name in text


def test_signing_out_there_needs_the_pages_own_form(browser):
    ada = browser("ada")
    (csrf,) = re.findall(
        r'action="/sign-out">\s*<input type="hidden" name="csrf" value="([0-9a-f]+)">', ada.get("/account").text
    )
    del ada.headers["X-CSRF-Token"]
    assert ada.post("/sign-out").status_code == 403
    assert ada.post("/sign-out", data={"csrf": csrf}, follow_redirects=False).headers["location"] == "/sign-in"
    assert ada.get("/account", follow_redirects=False).status_code == 303
