"""One session's page in a real browser, with real containers."""

import re
import secrets

import docker
import pytest
from playwright.sync_api import expect

from tests.e2e.web.conftest import serious_findings

SMALL = {"cpu": 0.1, "mem": "64M", "shm": "16M"}
BURN = "echo begun; while :; do :; done"


@pytest.fixture(scope="module")
def ada(server):
    with server.client(server.token("ada")) as client:
        yield client


@pytest.fixture(scope="module")
def busy(server, ada) -> str:
    """Return the id of ada's session of two containers, the first of which is busy."""
    spec = {**SMALL, "name": "busy", "cluster_size": 2, "command": BURN, "env": {"SHOWN": "to-its-owner"}}
    spec["time_limit"] = "1h"
    made = ada.post("/sessions", json=spec).json()["items"][0]
    server.node.reaches("busy", "RUNNING")
    return made["id"]


def row(page, kernel):
    return page.locator(f"#kernel-{kernel}")


def test_the_page_follows_a_session_from_the_queue_to_its_end(visit, server, ada):
    held = ada.post("/sessions", json={**SMALL, "name": "followed", "hold": True, "command": BURN}).json()["items"][0]
    page = visit("ada")
    page.goto("/sessions/followed")
    expect(page).to_have_url(f"{server.url}/sessions/{held['id']}")
    expect(page.locator("#state")).to_have_text("PENDING")
    page.get_by_role("button", name="Release").click()
    expect(page.get_by_text("followed is released")).to_be_visible()
    expect(page.locator("#state")).to_have_text("RUNNING")
    expect(page.locator(".session-story li").last).to_contain_text("running")
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("New name").fill("no name")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    expect(page.get_by_text("'no name' is not a session name")).to_be_visible()
    page.get_by_label("New name").fill("renamed")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("renamed")
    page.get_by_role("button", name="Terminate").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#state")).to_contain_text("TERMINATED")
    expect(page.get_by_role("button", name="Terminate")).to_have_count(0)
    expect(page.locator(".session-story li").last).to_contain_text("TERMINATED")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_shows_each_containers_current_usage(visit, busy, width):
    page = visit("ada", width=width)
    page.goto(f"/sessions/{busy}")
    expect(row(page, "main1")).to_contain_text(re.compile(r"0\.(0[1-9]|[1-9]\d?) of 0\.1"))
    expect(row(page, "main1")).to_contain_text(re.compile(r"[\d.]+ [KM]iB of 64 MiB"))
    expect(row(page, "sub1")).to_contain_text("of 64 MiB")
    for kernel in ("main1", "sub1"):
        network = row(page, kernel).locator('[data-label="Network"]')
        expect(network).to_have_text(re.compile(r"^[\d.]+ ([KMG]i)?B/s in, [\d.]+ ([KMG]i)?B/s out$"))
        expect(network).to_be_visible()
    line = row(page, "main1").locator("svg.spark path").first
    # A line is drawn as its numbers come, without a request by the user.
    expect(line).to_have_attribute("d", re.compile(r"M[\d. ]+(L[\d. ]+){2}"))


def test_another_user_gets_no_such_session(visit, busy):
    page = visit("eve")
    for reference in ("busy", busy):
        assert page.goto(f"/sessions/{reference}").status == 404
        expect(page.get_by_text(f"there is no session '{reference}'")).to_be_visible()
        assert "to-its-owner" not in page.content()


def test_time_is_added_once_however_often_its_button_is_pressed(visit, ada, busy):
    page = visit("ada")
    page.goto(f"/sessions/{busy}")
    sent = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    page.get_by_role("button", name="Extend").click()
    page.get_by_role("dialog").get_by_role("button", name="Extend").dblclick()
    expect(page.locator("#why")).to_have_text("extended by 1h by ada: its time limit is 2h")
    assert len(sent) == 1
    assert ada.get(f"/sessions/{busy}").json()["time_limit_s"] == 7200


def test_what_is_refused_while_a_dialog_is_open_is_said_in_it(visit, server, busy):
    """The page behind it is out of reach, for screen readers too."""
    page = visit("ada")
    page.goto(f"/sessions/{busy}")
    page.get_by_role("button", name="Rename").click()
    # Another tab signs in anew, so that this page is an old one.
    page.context.request.post("/sign-in", form={"token": server.token("ada")}, max_redirects=0)
    dialog = page.get_by_role("dialog")
    for _ in range(2):
        dialog.get_by_role("button", name="Rename").click()
        expect(dialog.get_by_role("alert")).to_contain_text("load the page again")
        expect(dialog.get_by_role("heading")).to_have_text("Rename busy")
    assert serious_findings(page) == []
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_a_containers_log_opens_from_its_row(visit, busy):
    page = visit("ada")
    page.goto(f"/sessions/{busy}")
    page.get_by_role("button", name="Log of main1").click()
    expect(page.get_by_role("dialog")).to_contain_text("begun")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download the log of main1").click()
    assert downloading.value.path().read_text() == "begun\n"
    expect(page.get_by_role("link", name="Terminal in sub1")).to_have_attribute(
        "href", f"/sessions/{busy}/terminal?kernel=sub1"
    )


def test_the_page_says_what_would_let_a_session_start(visit, ada):
    spec = {**SMALL, "name": "too-big", "cpu": 900}
    assert ada.post("/sessions", json=spec).status_code == 201
    page = visit("ada")
    page.goto("/sessions/too-big")
    expect(page.locator("#state")).to_contain_text("never fits")
    page.get_by_role("button", name="How could it start now?").click()
    expect(page.get_by_role("dialog")).to_contain_text("instead of 900 CPU")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Cancel session").click()
    page.locator("#confirm-yes").click()
    expect(page.locator("#state")).to_have_text("CANCELLED")


def test_an_image_is_made_of_a_container(visit, server, busy):
    name = f"ada/page-{secrets.token_hex(3)}:1"
    page = visit("ada")
    page.goto(f"/sessions/{busy}")
    page.get_by_role("button", name="Commit to an image").click()
    page.get_by_label("Container", exact=True).select_option("sub1")
    page.get_by_label("Image name").fill("no tag")
    page.get_by_role("button", name="Commit", exact=True).click()
    expect(page.get_by_text("has no tag; write a name and a tag")).to_be_visible()
    page.get_by_label("Image name").fill(name)
    page.get_by_role("button", name="Commit", exact=True).click()
    expect(page.get_by_text("The image is ready:")).to_be_visible()
    assert serious_findings(page) == []
    server.node.run("images", "rm", name)
    assert name not in [tag for image in docker.from_env().images.list() for tag in image.tags]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_the_page_keeps_nobody_out(visit, busy, width, dark):
    page = visit("ada", width=width, dark=dark)
    page.goto(f"/sessions/{busy}")
    expect(row(page, "main1")).to_contain_text("of 0.1")
    for summary in page.locator("details summary").all():
        summary.click()
    assert serious_findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for button, field in (("Rename", "New name"), ("Commit to an image", "Image name")):
        page.get_by_role("button", name=button).click()
        expect(page.get_by_label(field)).to_be_focused()
        assert serious_findings(page) == []
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
