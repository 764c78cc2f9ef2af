"""What a researcher does all day, in a browser, before the real server and the real engine."""

import re
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import Page, expect

from tests.e2e.web.conftest import serious_findings

WIDE = "sleep 100000"


def launch(page: Page, name: str, **fields: str) -> None:
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Launch").click()
    page.locator("#f-name").fill(name)
    page.locator("#f-mem").fill("64M")
    page.locator("#f-shm").fill("16M")
    for field, value in fields.items():
        page.locator(f"#f-{field}").fill(value)


def test_a_session_is_launched_watched_read_and_worked_in(visit):
    page = visit("ada")
    launch(page, "gang", cpu="0.05", cluster_size="3", command=WIDE)
    expect(page.locator("#verdict-line")).to_contain_text("Starts now on localhost")
    answer = page.get_by_role("complementary", name="Preview")
    expect(answer).to_contain_text(re.compile("3 containers"))
    expect(answer).to_contain_text("muster submit")
    expect(answer).to_contain_text("--cluster-size 3")
    page.locator("#f-bootstrap").fill("echo I am $BACKENDAI_CLUSTER_HOST")
    expect(answer).to_contain_text("bootstrap: echo I am")
    assert serious_findings(page) == []
    page.get_by_role("button", name="Launch").click()
    page.get_by_role("heading", name="gang").wait_for()
    # The page follows without being loaded again.
    state = page.locator(".badge[data-state]").first
    expect(state).to_have_text("RUNNING")
    story = page.get_by_role("list").filter(has_text="PENDING")
    expect(story).to_contain_text("RUNNING")
    assert serious_findings(page) == []

    page.get_by_role("button", name="Log of sub1").click()
    log = page.get_by_role("region", name="Log", exact=True)
    expect(log).to_contain_text("I am sub1")
    page.get_by_label("Search").fill("am sub")
    expect(page.locator("#log-matches")).to_contain_text("1")
    assert serious_findings(page) == []
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download all").click()
    assert downloading.value.path().read_text() == "I am sub1\n"
    page.keyboard.press("Escape")
    expect(log).to_have_count(0)

    page.get_by_role("link", name="Terminal in main1").click()
    rows = page.locator(".xterm-rows > div")
    page.locator("#terminal").click()
    expect(page.locator("#terminal-status")).to_have_text(re.compile("connected", re.IGNORECASE))
    page.keyboard.type("ssh sub1 hostname\n")
    expect(rows.filter(has_text=re.compile(r"^\s*sub1\s*$"))).to_have_count(1)
    assert serious_findings(page) == []

    page.get_by_role("link", name="gang").click()
    page.get_by_role("button", name="Terminate").click()
    page.locator("#confirm-yes").click()
    expect(state).to_contain_text("TERMINATED")


def test_a_session_that_does_not_fit_shows_why_and_starts_when_there_is_room(visit, server):
    (agent,) = server.node.run("agents", "--json").json()
    # Two gangs of two have three quarters of the agent.
    each = f"{agent['capacity']['cpu'] * 3 // 16 / 1000:g}"
    page = visit("walter")
    for number in (1, 2, 3):
        launch(page, f"wide-{number}", cpu=each, cluster_size="2", command=WIDE)
        answer = page.get_by_role("complementary", name="Preview")
        expect(answer).to_contain_text(f"--name wide-{number}")
        expect(page.locator("#verdict-line")).to_contain_text("Waits" if number == 3 else "Starts now")
        page.get_by_role("button", name="Launch").click()
        page.get_by_role("heading", name=f"wide-{number}").wait_for()
        if number < 3:
            expect(page.locator(".badge[data-state]").first).to_have_text("RUNNING")
    navigation = page.get_by_role("navigation", name="Pages")
    navigation.get_by_role("link", name="Queue").click()
    expect(page.get_by_role("row", name=re.compile("wide-3"))).to_contain_text("CPU")
    assert serious_findings(page) == []
    navigation.get_by_role("link", name="Sessions").click()
    third = page.get_by_role("row", name=re.compile("wide-3"))
    expect(third).to_contain_text("PENDING")
    page.get_by_label("Select wide-1", exact=True).check()
    page.get_by_role("button", name="Terminate").click()
    page.locator("#confirm-yes").click()
    expect(third).to_contain_text("RUNNING")
    page.get_by_label("Select all").check()
    page.get_by_role("button", name="Terminate").click()
    page.locator("#confirm-yes").click()
    expect(page.get_by_text("No sessions are running or waiting")).to_be_visible()


def test_another_users_session_is_refused(visit, server):
    server.node.run("submit", "--name", "hers", "--owner", "ada", "--hold", "--mem", "64M", "--", "sleep", "9")
    key = server.node.show("hers")["id"]
    page = visit("eve")
    cookies = {cookie["name"]: cookie["value"] for cookie in page.context.cookies()}
    for path in ("", "/terminal", "/kernels/main1/log", "/kernels/main1/log-dialog", "/use"):
        answer = page.goto(f"/sessions/{key}{path}")
        assert answer is not None
        assert answer.status == 404, path
        assert "there is no session" in page.inner_text("body").lower(), path
        assert "hers" not in page.inner_text("body")
    page.goto("/sessions?show=all&name=hers")
    expect(page.get_by_text("0 sessions")).to_be_visible()
    host = urlsplit(server.url).netloc
    answer = httpx.get(f"{server.url}/sessions/{key}", cookies=cookies, headers={"Host": host})
    assert answer.status_code == 404
    server.node.run("cancel", "hers")
