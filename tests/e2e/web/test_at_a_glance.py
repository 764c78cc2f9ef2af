"""What one sees at a glance in a real browser, at both widths: a queue that nobody works, in the database alone."""

import re
import secrets
import time
from contextlib import closing
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from muster.core.model.heartbeat import Heartbeat, Worker
from muster.core.model.session import Allocation, GpuShare, Result, SessionState
from muster.core.usage.history import UsageStep
from muster.store.store import Store
from tests.control_node import ControlNode
from tests.e2e.web.conftest import serious_findings
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_array, make_session
from tests.unit.running_sessions import running_session

WIDTHS = (390, 1280)
SILENT_S = 1025
ENDED = 60
SHOWN = ENDED + 5


def store_of(node: ControlNode) -> Store:
    return Store(f"sqlite:///{node.directory / 'state' / 'muster.db'}")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Return a control node whose daemon has died: agents, an array that waits, sessions that run and have ended."""
    made = ControlNode(tmp_path_factory.mktemp("node"), f"e2e-{secrets.token_hex(4)}")
    made.run("ls")
    now = time.time()
    agent = replace(make_agent("agent-1", cpus=16, gpus=1, units_per_gpu=2), observed_at=now - SILENT_S)
    share = Allocation("agent-1", (GpuShare(agent.gpus[0].uuid, 500, whole=False),))
    runs = running_session(1, "agent-1", owner="ada", name="runs", fgpu=0.5, cluster_size=2)
    runs = replace(runs, generation=1, kernels=tuple(replace(kernel, allocation=share) for kernel in runs.kernels))
    waits = make_array(10, range(4), owner="ada", cpu=900)
    done = [
        make_session(100 + n, name=f"done-{n:02}", owner="ada", state=SessionState.TERMINATED) for n in range(ENDED)
    ]
    done = [replace(one, result=Result.SUCCESS, ended_at=now) for one in done]
    begin = int(now // 15 * 15) - 300
    steps = [
        UsageStep(kernel.id, 1, runs.id, begin + 15 * n, 1.0 + kernel.rank + n, 1, float(1 << 30), 1)
        for kernel in runs.kernels
        for n in range(8)
    ]
    with closing(store_of(made)) as store:
        store.agents.save([agent])
        store.add([replace(one, submitted_at=now - SILENT_S) for one in (runs, *waits, *done)])
        store.usage_steps.add(steps)
    beat(made, 0)
    yield made
    made.remove_traces()


def beat(node: ControlNode, ago_s: float) -> None:
    with closing(store_of(node)) as store:
        store.heartbeats.save(Heartbeat(time.time() - ago_s, Worker.DAEMON, "ctl-1", 7))


@pytest.fixture(autouse=True)
def _silence(node, server):
    """Let the daemon fall silent: a server is ready only while the queue is worked."""
    assert server.node is node
    beat(node, SILENT_S)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_a_banner_says_that_nobody_works_the_queue_and_nothing_is_promised(visit, node, width, dark):
    page = visit("root", "admin", width=width, dark=dark)
    for path in ("/overview", "/sessions", "/queue", "/resources", "/launch", "/usage", "/folders", "/images"):
        page.goto(path)
        expect(page.locator("#unworked")).to_contain_text("Nobody has worked the queue for")
        expect(page.locator("#unworked")).to_be_in_viewport(ratio=1)
    page.goto("/resources")
    expect(page.locator('[data-state="STALE"]').first).to_be_visible()
    expect(page.locator('[data-state="ALIVE"]')).to_have_count(0)
    assert serious_findings(page) == []
    page.goto("/launch")
    expect(page.locator("#answer-line")).to_contain_text("Waits: nobody has worked the queue")
    expect(page.get_by_text("Starts now")).to_have_count(0)
    beat(node, 0)
    page.reload()
    expect(page.get_by_text("has worked the queue")).to_have_count(0)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_overview_names_agents_with_problems(visit, width):
    page = visit("ada", width=width)
    page.goto("/overview")
    troubled = page.get_by_role("region", name="Agents with problems")
    expect(troubled.get_by_role("link", name="agent-1")).to_be_in_viewport(ratio=1)
    expect(troubled).to_contain_text(re.compile(r"STALE\s+not observed for 1[78]m"))


@pytest.mark.parametrize("width", WIDTHS)
def test_an_array_is_one_row_of_the_queue(visit, width):
    page = visit("ada", width=width)
    page.goto("/queue")
    row = page.get_by_role("row").filter(has_text="4 sessions")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("s10")
    row.get_by_role("link").first.click()
    expect(page.get_by_role("row").filter(has_text="s10-")).to_have_count(4)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_list_has_numbered_pages(visit, width):
    page = visit("ada", width=width)
    page.goto("/sessions?show=all")
    pages = page.get_by_role("navigation", name="Pages of the list")
    expect(pages.get_by_role("link")).to_have_text(["Page 1", "Page 2", "Next"])
    expect(page.locator("tbody tr")).to_have_count(50)
    pages.get_by_role("link", name="Page 2").click()
    expect(pages.locator('[aria-current="page"]')).to_have_text("Page 2")
    expect(page.locator("tbody tr")).to_have_count(SHOWN - 50)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_is_a_card_on_a_phone_and_a_row_of_a_table_elsewhere(visit, width):
    page = visit("ada", width=width)
    page.goto("/sessions")
    cell = page.locator('td[data-label="Resources"]').first
    shown = cell.evaluate(
        "element => [getComputedStyle(element).display, getComputedStyle(element, '::before').content]"
    )
    assert shown == (["block", '"Resources: "'] if width == WIDTHS[0] else ["table-cell", "none"])


@pytest.mark.parametrize("width", WIDTHS)
def test_a_session_shows_each_containers_usage_over_its_life_and_amounts_with_units(visit, width):
    page = visit("ada", width=width)
    page.goto("/sessions/runs")
    plots = page.get_by_role("region", name="Usage over its life")
    for of in ("CPU", "Memory"):
        picture = plots.get_by_role("img", name=f"{of} of runs over its life")
        expect(picture).to_be_visible()
        assert picture.bounding_box()["width"] <= width
        lines = picture.locator("path.plot-line").evaluate_all("all => all.map(one => getComputedStyle(one).stroke)")
        assert len(set(lines)) == 2
    for name, numbers in (("Main1", "last 8 CPU, mean 4.5 CPU"), ("Sub1", "last 9 CPU, mean 5.5 CPU")):
        expect(plots.get_by_text(f"{name}: {numbers}")).to_be_visible()
    plots.get_by_text("Table of numbers: usage of runs over its life").click()
    expect(plots.get_by_role("table")).to_be_visible()
    expect(page.get_by_text("GPU 0: 0.5 fGPU").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert serious_findings(page) == []
