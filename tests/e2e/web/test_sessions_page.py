"""The list of sessions in a real browser, before a real engine."""

import re
import time

import pytest
from playwright.sync_api import expect

from tests.e2e.web.conftest import serious_findings

SMALL = ("--cpu", "0.05", "--mem", "64M", "--shm", "16M")


def test_the_list_follows_what_happens_and_ends_several_sessions(visit, server):
    page = visit("dora")
    expect(page.get_by_text("No sessions are running or waiting")).to_be_visible()
    with server.client(server.token("dora")) as dora:
        spec = {"cpu": 0.05, "mem": "64M", "shm": "16M", "command": "sleep 1000"}
        for name in ("listed-1", "listed-2"):
            assert dora.post("/sessions", json={**spec, "name": name}).status_code == 201
    row = page.get_by_role("row", name="listed-1")
    expect(row).to_contain_text("RUNNING")
    page.get_by_label("Select listed-1").check()
    # Ticked rows stay ticked while the list changes.
    expect(page.get_by_role("row", name="listed-2")).to_contain_text("RUNNING")
    expect(page.get_by_label("Select listed-1")).to_be_checked()
    page.get_by_label("Select all").check()
    expect(page.locator("[data-selected-count]")).to_have_text("2 selected")
    page.get_by_role("button", name="Terminate").click()
    page.locator("#confirm-no").click()
    expect(row).to_contain_text("RUNNING")
    page.get_by_role("button", name="Terminate").click()
    page.locator("#confirm-yes").click()
    expect(page.get_by_text("2 sessions are ending")).to_be_visible()
    expect(page.get_by_text("No sessions are running or waiting")).to_be_visible()
    page.get_by_label("Show").select_option("all")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("row", name="listed-2")).to_contain_text("TERMINATED")


def test_the_list_shows_what_it_missed_while_nobody_told_it_of_changes(visit, server):
    """As while a proxy answers for a server that is starting: a browser does not come back from that by itself."""
    page = visit("erin")
    page.clock.install()
    page.route("**/live", lambda route: route.fulfill(status=503), times=1)
    with page.expect_response("**/live"):
        page.goto("/sessions")
    # From now on no time goes by on the page but what is given to it: less than until it looks by itself.
    page.clock.pause_at(time.time() + 1)
    with server.client(server.token("erin")) as erin:
        erin.post("/sessions", json={"cpu": 0.05, "mem": "64M", "command": "true", "hold": True, "name": "missed"})
    with page.expect_response("**/live"):
        page.clock.run_for(5000)
    row = page.get_by_role("row", name="missed")
    for _ in range(2000):
        if row.is_visible():
            break
        page.clock.run_for(10)
    assert row.is_visible()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [360, 1280])
def test_pages_keep_nobody_out(visit, server, width, dark):
    node = server.node
    node.run("submit", *SMALL, "--name", f"shown-{width}-{dark}", "--hold", "--", "sleep", "1000")
    page = visit("root", "admin", width=width, dark=dark)
    expect(page.get_by_role("row", name=re.compile("shown-"))).not_to_have_count(0)
    assert serious_findings(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    node.run("cancel", f"shown-{width}-{dark}")
