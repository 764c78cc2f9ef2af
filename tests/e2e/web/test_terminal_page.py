"""The terminal's page and the log's dialog as a person uses them."""

import re

import pytest
from playwright.sync_api import expect

from tests.e2e.web.conftest import serious_findings
from tests.waiting import eventually

SMALL = {"cpu": 0.05, "mem": "64M", "shm": "16M"}
# 30,000 lines, more than a page keeps; colours, a progress bar, markup, and then a line each second.
WRITES = (
    "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); echo line $i; done; printf '\\033[31mred\\033[0m <b>bold</b>\\n';"
    " printf '10%%\\r50%%\\r100%%\\n'; echo the end; while sleep 1; do echo tick; done"
)


@pytest.fixture(scope="module")
def talks(server) -> str:
    """Return the id of eve's session that writes much, and goes on."""
    with server.client(server.token("eve")) as eve:
        made = eve.post("/sessions", json={**SMALL, "name": "talks", "command": WRITES}).json()["items"][0]
    server.node.reaches("talks", "RUNNING")
    return made["id"]


def test_a_log_is_cut_followed_searched_and_read_without_the_mouse(visit, talks):
    page = visit("eve")
    page.goto(f"/sessions/{talks}")
    page.get_by_role("button", name="Log of main1").click()
    text = page.locator("#log-text")
    expect(text).to_contain_text("tick")
    expect(text).to_contain_text("red <b>bold</b>\n100%\nthe end")
    expect(page.locator("#log-status")).to_have_text("Following.")
    page.get_by_label("Start at").select_option("20000")
    expect(page.locator("#log-lines")).to_have_text(re.compile("older ones are in the download"))
    shown = eventually(text.inner_text, lambda shown: "line 30000\n" in shown, complaint=lambda: "")
    assert "line 9\n" not in shown
    # The terminal shows its end until the reader scrolls up.
    eventually(lambda: text.evaluate("e => e.scrollHeight - e.scrollTop - e.clientHeight"), lambda rest: rest < 40)
    page.keyboard.press("/")
    expect(page.locator("#log-search")).to_be_focused()
    # Far from the end, however long it has gone on.
    page.keyboard.type("LINE 2000")
    expect(page.locator("#log-matches")).to_have_text("10 found")
    page.keyboard.press("Enter")
    expect(page.locator("#log-matches")).to_have_text("1 of 10")
    page.keyboard.press("Shift+Enter")
    expect(page.locator("#log-matches")).to_have_text("10 of 10")
    expect(page.get_by_role("button", name="To the end")).to_be_visible()
    marked = "CSS.highlights.get('log-match').size + CSS.highlights.get('log-current').size"
    eventually(lambda: page.evaluate(marked), lambda count: count == 10)
    page.get_by_role("button", name="To the end").click()
    expect(page.get_by_role("button", name="To the end")).to_be_hidden()
    assert serious_findings(page) == []
    page.keyboard.press("Escape")
    expect(text).to_have_count(0)
    # Again, since a script that is loaded already must serve the next dialog too.
    page.get_by_role("button", name="Log of main1").click()
    expect(text).to_contain_text("tick")


def test_a_terminal_is_typed_in_left_by_the_keyboard_and_opened_again(visit, talks):
    page = visit("eve", dark=True)
    page.goto(f"/sessions/{talks}/terminal")
    status = page.locator("#terminal-status")
    rows = page.locator(".xterm-rows > div")
    expect(status).to_have_text("Connected to main1")
    page.keyboard.type("echo $((6 * 7)); stty size\n")
    expect(rows.filter(has_text=re.compile(r"^\s*42\s*$"))).to_have_count(1)
    size = rows.filter(has_text=re.compile(r"^\s*\d+ \d+\s*$"))
    expect(size).to_have_count(1)
    assert int(size.inner_text().split()[0]) == rows.count()
    page.keyboard.press("Control+F6")
    expect(page.get_by_label("Container")).to_be_focused()
    assert serious_findings(page) == []
    page.locator("#terminal").click()
    page.evaluate("text => navigator.clipboard.writeText(text)", "echo pa''sted")
    page.get_by_role("button", name="Paste").click()
    expect(rows.filter(has_text="pa''sted")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(rows.filter(has_text=re.compile(r"^\s*pasted\s*$"))).to_have_count(1)
    page.keyboard.type("exit\n")
    expect(status).to_have_text("Closed: the shell has ended")
    expect(rows.filter(has_text="press Enter to connect again")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(status).to_have_text("Connected to main1")
    page.keyboard.type("echo again $((40 + 2))\n")
    expect(rows.filter(has_text=re.compile(r"^\s*again 42\s*$"))).to_have_count(1)


def test_a_terminal_fits_a_phone_and_can_be_read_aloud(visit, talks):
    page = visit("eve", width=360)
    page.goto(f"/sessions/{talks}/terminal")
    expect(page.locator("#terminal-status")).to_have_text("Connected to main1")
    page.get_by_label("Screen reader").check()
    page.locator("#terminal").click()
    page.keyboard.type("echo $((6 * 7))\n")
    expect(page.locator(".xterm-accessibility")).to_contain_text("42")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert serious_findings(page) == []
