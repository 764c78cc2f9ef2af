"""The pages of the queue, of usage, of folders and of images in a real browser, before a real engine."""

import csv
import io
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Route, expect

from tests.e2e.web.conftest import serious_findings

SMALL = {"cpu": 0.05, "mem": "64M", "shm": "16M"}
PAGES = (
    "/queue",
    "/usage?by=user&by=project&by=day",
    "/folders",
    "/folders/ada/looked-at",
    "/images",
    "/account",
)


@pytest.fixture(scope="module")
def ada(server):
    with server.client(server.token("ada")) as client:
        yield client


@pytest.fixture(scope="module")
def eve(server):
    with server.client(server.token("eve")) as client:
        yield client


def test_the_queue_follows_what_happens_and_is_changed_by_hand(visit, ada, eve):
    page = visit("ada")
    assert ada.post("/sessions", json={**SMALL, "name": "too-large", "cpu": 10_000}).status_code == 201
    assert eve.post("/sessions", json={**SMALL, "name": "hers", "hold": True}).status_code == 201
    page.goto("/queue")
    row = page.get_by_role("row", name="too-large")
    expect(row).to_contain_text("never fits")
    expect(row).to_contain_text("never, as it is")
    row.get_by_text("More about too-large").click()
    row.get_by_label("Select too-large").check()
    # New rows appear, and the reader's opened and selected ones stay.
    assert ada.post("/sessions", json={**SMALL, "name": "kept", "hold": True}).status_code == 201
    expect(page.get_by_role("row", name="kept")).to_contain_text("not before it is released")
    expect(page.get_by_text("3 sessions wait, 2 of them yours: 1 held, 1 that can never start.")).to_be_visible()
    expect(row.get_by_text("it asks for 10000 CPU")).to_be_visible()
    expect(row.get_by_label("Select too-large")).to_be_checked()
    assert "hers" not in page.locator("table").inner_text()
    page.get_by_role("button", name="Cancel sessions").click()
    page.locator("#confirm-yes").click()
    expect(page.get_by_text("too-large is cancelled")).to_be_visible()
    expect(row).to_have_count(0)
    page.get_by_label("Select kept").check()
    page.get_by_role("button", name="Release").click()
    # It runs now, and so leaves the queue.
    expect(page.get_by_role("row", name="kept")).to_have_count(0)
    assert eve.post("/sessions/cancel", json={"sessions": ["hers"]}).status_code == 200
    expect(page.get_by_text("No sessions are waiting.")).to_be_visible()
    assert ada.post("/sessions/terminate", json={"sessions": ["kept"]}).status_code == 200


@pytest.mark.parametrize("path", ["/queue", "/sessions"])
def test_what_is_selected_while_the_page_is_refreshed_stays_selected(visit, ada, path):
    chosen, newcomer = (f"{name}-{path[1:]}" for name in ("chosen", "newcomer"))
    assert ada.post("/sessions", json={**SMALL, "name": chosen, "hold": True}).status_code == 201
    page = visit("ada")
    page.goto(path)
    box = page.get_by_label(f"Select {chosen}")
    expect(box).not_to_be_checked()
    refreshes = []

    def keep(refresh: Route) -> None:
        refreshes.append(refresh)

    page.route(lambda url: urlsplit(url).path == path, keep, times=1)
    with page.expect_request(lambda request: urlsplit(request.url).path == path):
        assert ada.post("/sessions", json={**SMALL, "name": newcomer, "hold": True}).status_code == 201
    box.check()
    # The server has not been told of the selection by this request.
    refreshes[0].continue_()
    expect(page.get_by_role("row", name=newcomer)).to_be_visible()
    expect(box).to_be_checked()
    assert ada.post("/sessions/cancel", json={"sessions": [chosen, newcomer]}).status_code == 200


def test_usage_is_shown_and_downloaded(visit, ada, eve):
    for client, project in ((ada, "vision"), (eve, "secret-project")):
        spec = {**SMALL, "name": f"used-{project}", "project": project, "command": "sleep 1"}
        assert client.post("/sessions", json=spec).status_code == 201
    page = visit("root", "admin")
    page.goto("/sessions?show=all")
    for project in ("vision", "secret-project"):
        expect(page.get_by_role("row", name=f"used-{project}")).to_contain_text("TERMINATED")
    page = visit("ada")
    page.goto("/usage")
    expect(page.get_by_role("row", name="vision")).to_contain_text("1")
    expect(page.get_by_role("img", name="Hours of CPU and GPU")).to_be_visible()
    assert "secret-project" not in page.content()
    page.get_by_label("Day").check()
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_role("columnheader", name="Day")).to_be_visible()
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download as CSV").click()
    rows = list(csv.DictReader(io.StringIO(downloading.value.path().read_text())))
    assert {row["project"] for row in rows} >= {"vision"}
    assert all(int(row["sessions"]) > 0 for row in rows)


def test_a_folder_is_made_measured_shared_and_removed(visit):
    page = visit("ada")
    page.goto("/folders")
    page.get_by_label("Name").fill("in-browser")
    page.get_by_label("Quota").fill("1G")
    page.get_by_role("button", name="Create").click()
    page.get_by_role("heading", name="in-browser").wait_for()
    page.get_by_label("User or project").fill("eve")
    page.get_by_role("button", name="Share", exact=True).click()
    expect(page.get_by_text("eve: read only")).to_be_visible()
    expect(page.get_by_text("in 0 files")).to_be_visible()
    eve = visit("eve")
    eve.goto("/folders")
    eve.get_by_role("link", name="in-browser", exact=True).click()
    expect(eve.get_by_text("eve: read only")).to_be_visible()
    expect(eve.get_by_role("button", name="Remove with all data")).to_have_count(0)
    page.get_by_role("button", name="Stop sharing with eve").click()
    expect(page.get_by_text("Nobody.")).to_be_visible()
    page.get_by_label("Name of the folder, to confirm").fill("in-browser")
    page.get_by_role("button", name="Remove with all data").click()
    expect(page.get_by_text("You have no folders")).to_be_visible()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_these_pages_keep_nobody_out(visit, server, width, dark):
    node = server.node
    node.run("submit", "--cpu", "0.05", "--mem", "64M", "--name", f"shown-{width}-{dark}", "--hold", "--", "true")
    page = visit("ada", width=width, dark=dark)
    if page.goto("/folders/ada/looked-at").status == 404:
        page.goto("/folders")
        page.get_by_label("Name").fill("looked-at")
        page.get_by_role("button", name="Create").click()
        page.get_by_role("heading", name="looked-at").wait_for()
    for path in PAGES:
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert serious_findings(page) == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    node.run("cancel", f"shown-{width}-{dark}")
