"""The pages of agents in a real browser: what a real host has and really uses, drained and resumed by hand."""

import pytest
from playwright.sync_api import expect

from tests.e2e.web.conftest import serious_findings
from tests.waiting import eventually

SMALL = ("--cpu", "0.1", "--mem", "64M", "--shm", "16M")


@pytest.fixture(scope="module")
def ada(server):
    with server.client(server.token("ada")) as client:
        yield client


@pytest.fixture(scope="module")
def agent(ada):
    (found,) = ada.get("/agents").json()["items"]
    return found["id"]


@pytest.fixture(scope="module")
def busy(server):
    """Start ada's session, which computes in two containers."""
    server.node.run("submit", *SMALL, "--owner", "ada", "--name", "busy-pair", "--cluster-size", "2")
    server.node.reaches("busy-pair", "RUNNING")
    server.node.exec("busy-pair", "sh", "-c", "yes >/dev/null 2>&1 &")


@pytest.mark.usefixtures("busy")
def test_users_see_agents_but_not_others_sessions(visit, agent):
    page = visit("ada")
    page.goto("/resources")
    row = page.get_by_role("row", name=agent)
    expect(row.get_by_role("link", name="busy-pair")).to_be_visible()
    expect(row).to_contain_text("ALIVE")
    expect(page.get_by_role("link", name="Drain")).to_have_count(0)
    eve = visit("eve", width=360, dark=True)
    eve.goto("/resources")
    expect(eve.get_by_role("row", name=agent)).to_contain_text("2 containers of other users")
    expect(eve.get_by_text("busy-pair")).to_have_count(0)
    row.get_by_role("link", name=agent).click()
    expect(page.get_by_role("heading", name=f"Agent {agent}")).to_be_visible()
    expect(page.get_by_role("row", name="busy-pair")).to_have_count(2)


@pytest.mark.usefixtures("busy")
def test_an_administrator_drains_and_resumes(visit, agent, ada):
    page = visit("root", "admin")
    page.goto(f"/resources/{agent}")
    page.get_by_label("Reason").fill("new disk on Friday")
    page.get_by_role("button", name="Drain").click()
    page.locator("#confirm-yes").click()
    expect(page.get_by_role("status").get_by_text(f"{agent} is drained")).to_be_visible()
    expect(page.get_by_text("new disk on Friday", exact=True)).to_be_visible()
    assert ada.get(f"/agents/{agent}").json()["drain_reason"] == "new disk on Friday"
    page.goto("/resources")
    page.get_by_role("button", name="Resume").click()
    page.locator("#confirm-no").click()
    assert ada.get(f"/agents/{agent}").json()["drain_reason"] == "new disk on Friday"
    page.get_by_role("button", name="Resume").click()
    page.locator("#confirm-yes").click()
    expect(page.get_by_text("DRAINING")).to_have_count(0)
    assert ada.get(f"/agents/{agent}").json()["drain_reason"] is None


@pytest.mark.usefixtures("busy")
def test_real_usage_appears_in_the_plots(visit, agent, ada):
    def known_points():
        points = ada.get("/use/over-time", params={"agent": agent}).json()["points"]
        return [point["cpu"] for point in points if point["cpu"]]

    known = eventually(known_points, lambda known: known and (known[-1]["used"] or 0) > 50, within_s=240)
    # One kernel computes with a tenth of a core; both have one.
    assert known[-1]["used"] < 150
    assert known[-1]["allocated"] >= 200
    page = visit("ada")
    page.goto(f"/resources/{agent}")
    picture = page.get_by_role("img", name=f"CPU of agent {agent}, last hour")
    expect(picture).to_be_visible()
    page.get_by_role("link", name="Last week").click()
    expect(page.get_by_role("img", name=f"CPU of agent {agent}, last week")).to_be_visible()
    page.get_by_text("Table of numbers: usage of agent").click()
    expect(page.get_by_role("columnheader", name="CPU used")).to_be_visible()


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
@pytest.mark.usefixtures("busy")
def test_the_pages_keep_nobody_out(visit, agent, width, dark):
    page = visit("root", "admin", width=width, dark=dark)
    for path in ("/resources", f"/resources/{agent}"):
        page.goto(path)
        assert serious_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
