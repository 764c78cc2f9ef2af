"""The pages of data folders: one's own and what is shared; others' are not there."""

import html
import re
from dataclasses import replace

import pytest

from muster.core.agents.agent import AgentState
from muster.core.model.token import Scope
from muster.core.spec.mounts import HOME
from tests.strategies.agents import make_agent
from tests.unit.web.api.test_api import submitted

HTMX = {"HX-Request": "true"}


def words(text):
    main = re.search(r"<main.*?</main>", text, re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", main[0] if main else text)).split())


def listed(text):
    return re.findall(r'<a href="/folders/[^"]+">([^<]+)</a>', text)


def test_a_folder_is_made_shared_limited_and_removed(browser, service):
    ada = browser("ada")
    assert "You have no folders" in ada.get("/folders").text
    made = ada.post("/folders", data={"name": "data", "quota": "1.5G"}, headers=HTMX)
    assert (made.status_code, made.headers["hx-redirect"]) == (204, "/folders/ada/data")
    ada.post("/folders/ada/data/share", data={"whom": "bob", "access": "rw"})
    ada.post("/folders/ada/data/share", data={"whom": "@vision", "access": "ro"})
    text = words(ada.get("/folders/ada/data").text)
    for fact in ("bob: read and write", "@vision: read only", "1.5 GiB", f"{HOME}/data"):
        assert fact in text
    said = ada.post("/folders/ada/data/unshare", data={"whom": "bob"}, headers=HTMX)
    assert said.headers["hx-trigger"] == '{"muster:announce": "data is no longer shared with bob"}'
    assert "any amount" in ada.post("/folders/ada/data/quota", data={"quota": ""}, headers=HTMX).headers["hx-trigger"]
    log = (service.settings.state_dir / "audit.log").read_text()
    assert '"path": "/folders/ada/data/quota?quota_bytes=none"' in log
    (folder,) = service.store.folders.all()
    assert ([share.grantee for share in folder.shares], folder.quota_bytes) == (["@vision"], None)
    assert listed(ada.get("/folders").text) == ["data"]
    refused = ada.post("/folders/ada/data/remove", data={"confirmed": "dat"}, headers=HTMX)
    assert (refused.status_code, ">write the folder&#39;s name, data" in refused.text) == (422, True)
    gone = ada.post("/folders/ada/data/remove", data={"confirmed": "data"}, headers=HTMX)
    assert gone.headers["hx-redirect"] == "/folders"
    assert not service.store.folders.all()


def test_without_scripts_forms_lead_on(browser):
    ada = browser("ada")
    del ada.headers["X-CSRF-Token"]
    form = {"csrf": ada.csrf, "name": "data"}
    made = ada.post("/folders", data=form, follow_redirects=False)
    assert (made.status_code, made.headers["location"]) == (303, "/folders/ada/data")
    assert "data" in listed(ada.get("/folders").text)


@pytest.mark.parametrize("action", ["share", "unshare", "quota", "remove"])
@pytest.mark.parametrize("scope", [Scope.USER, Scope.READ])
def test_others_folders_are_not_there(browser, service, action, scope):
    eve, ada = browser("eve"), browser("ada", scope)
    eve.post("/folders", data={"name": "private"})
    form = {"whom": "ada", "access": "rw", "quota": "1M", "confirmed": "private"}
    assert "private" not in listed(ada.get("/folders?everybody=true&project=x").text)
    for name in ("private", "nosuch"):
        shown = ada.get(f"/folders/eve/{name}")
        assert shown.status_code == 404
        assert f"eve has no folder &#39;{name}&#39;" in shown.text
    refused = ada.post(f"/folders/eve/private/{action}", data=form)
    assert refused.status_code == (404 if scope is Scope.USER else 403)
    (folder,) = service.store.folders.all()
    assert (folder.shares, folder.quota_bytes, folder.owner) == ((), None, "eve")


def test_a_user_of_a_shared_folder_sees_it_and_changes_nothing(browser, service):
    eve, ada = browser("eve"), browser("ada")
    eve.post("/folders", data={"name": "shared"})
    for whom in ("ada", "bob"):
        eve.post("/folders/eve/shared/share", data={"whom": whom})
    assert listed(ada.get("/folders").text) == ["shared"]
    text = ada.get("/folders/eve/shared").text
    assert "ada: read only" in words(text)
    assert "bob" not in text
    assert "<form" not in re.search(r"<main.*?</main>", text, re.DOTALL)[0]
    assert ada.post("/folders/eve/shared/share", data={"whom": "carl"}).status_code == 403
    assert ada.post("/folders/eve/shared/remove", data={"confirmed": "shared"}).status_code == 403
    (folder,) = service.store.folders.all()
    assert [share.grantee for share in folder.shares] == ["ada", "bob"]


def test_a_project_it_is_shared_with_finds_it(browser):
    eve, ada = browser("eve"), browser("ada")
    eve.post("/folders", data={"name": "shared"})
    eve.post("/folders/eve/shared/share", data={"whom": "@vision"})
    assert listed(ada.get("/folders").text) == []
    text = ada.get("/folders?project=vision").text
    assert listed(text) == ["shared"]
    path, files = re.findall(r'href="(/folders/eve/shared[^"]*)"', text)
    assert files == "/folders/eve/shared/files?project=vision"
    assert ada.get(html.unescape(path)).status_code == 200


def test_administrators_see_and_make_everybodys(browser):
    browser("eve").post("/folders", data={"name": "hers"})
    root = browser("root", Scope.ADMIN)
    assert listed(root.get("/folders").text) == []
    assert root.post("/folders", data={"name": "his", "owner": "bob"}).status_code == 200
    assert listed(root.get("/folders?everybody=true").text) == ["his", "hers"]
    refused = browser("ada").post("/folders", data={"name": "his2", "owner": "bob"})
    assert refused.status_code == 403


def test_a_folder_that_a_session_mounts_is_named_and_not_removed(browser, caller, service):
    ada = browser("ada")
    ada.post("/folders", data={"name": "data"})
    submitted(caller("ada"), name="uses", mounts=[{"folder": "data"}])
    assert '<a href="/sessions/uses">uses</a>' in ada.get("/folders/ada/data").text
    refused = ada.post("/folders/ada/data/remove", data={"confirmed": "data"})
    assert (refused.status_code, "in use by uses" in refused.text) == (409, True)
    assert len(service.store.folders.all()) == 1


def test_folders_kept_on_absent_agents_are_shown(browser, service):
    service.store.agents.save([replace(make_agent("far"), state=AgentState.LOST, problem="no <b>route</b>")])
    ada = browser("ada")
    ada.post("/folders", data={"name": "data"})
    text = ada.get("/folders?sizes=true").text
    assert "agent far: no &lt;b&gt;route" in text
    assert "not known" in text
    assert "no &lt;b&gt;route" in ada.get("/folders/ada/data?sizes=true").text
    left = ada.post("/folders/ada/data/remove", data={"confirmed": "data"}, headers=HTMX)
    assert "Its data is still on far" in left.headers["hx-trigger"]
    assert "still on far" in words(ada.get("/folders").text)
    assert "Set" not in words(ada.get("/folders/ada/data").text)


def test_the_live_part_of_a_folder_is_that_part_alone(browser):
    ada = browser("ada")
    ada.post("/folders", data={"name": "data", "quota": "4G"})
    part = ada.get("/folders/ada/data", headers=HTMX).text
    assert "Details" in part
    assert "<html" not in part
    assert "<form" not in part


@pytest.mark.parametrize(
    ("form", "field"),
    [
        ({"name": "a/b"}, "name"),
        ({"name": "<script>"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "data", "quota": "much"}, "quota"),
        ({"name": "data", "quota": "1"}, "quota"),
    ],
)
def test_a_wrong_folder_is_refused_in_one_line(browser, form, field):
    refused = browser("ada").post("/folders", data=form, headers=HTMX)
    assert refused.status_code == 422
    assert refused.text.count("<p") == 1
    assert field in refused.text
    assert "<script>" not in refused.text


@pytest.mark.parametrize("path", ["", "/ada/data/share", "/ada/data/unshare", "/ada/data/quota", "/ada/data/remove"])
def test_no_other_page_changes_folders(browser, service, path):
    ada = browser("ada")
    ada.post("/folders", data={"name": "data"})
    form = {"name": "more", "whom": "eve", "quota": "1M", "confirmed": "data"}
    for headers in ({"X-CSRF-Token": "0" * 64}, {"Origin": "https://evil.example"}):
        assert ada.post(f"/folders{path}", data=form, headers=headers).status_code == 403
    (folder,) = service.store.folders.all()
    assert (folder.name, folder.shares, folder.quota_bytes) == ("data", (), None)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/folders?everybody=perhaps", 422),
        ("/folders?project=%00", 422),
        ("/folders/ada/%00", 422),
        ("/folders/ada/nosuch", 404),
        ("/folders/ada", 404),
        ("/folders/<script>/<script>", 404),
    ],
)
def test_addresses_that_lead_nowhere_are_a_page_that_says_so(browser, path, status):
    answer = browser("ada").get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script>" not in answer.text
