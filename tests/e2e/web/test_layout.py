"""The pages' layout in a real browser at both widths: a cluster that lives in the database alone."""

import gzip
import re
import secrets
import time
from dataclasses import replace

import pytest
from playwright.sync_api import Locator, expect

from muster.core.model.agent_sample import AgentSample, Amount
from muster.core.model.session import KernelLog, Result, SessionState
from muster.core.model.wait import Wait, WaitCode
from muster.store.store import Store
from tests.control_node import ControlNode
from tests.e2e.web.conftest import serious_findings
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on

WIDTHS = (390, 1280)
PAGES = (
    "/overview",
    "/sessions?show=all",
    "/queue",
    "/queue?group=default",
    "/resources",
    "/resources/agent-1",
    "/reservations",
    "/limits",
    "/limits?kind=user&name=ada&user=ada",
    "/usage",
    "/folders",
    "/images",
    "/account",
    "/launch",
    "/sessions/runs",
    "/sessions/broke",
)
# Elements that a reader must scroll sideways, as text.
SIDEWAYS = """() => [document.documentElement, ...document.querySelectorAll('body *')].filter(element =>
  element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 2 && element.checkVisibility()
  && (element === document.documentElement || /auto|scroll/.test(getComputedStyle(element).overflowX))
).map(element => `${element.tagName}.${element.className} ${element.scrollWidth} > ${element.clientWidth}`)"""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """Return a control node whose queue nobody works, with what fills its pages. Nothing of it is on an agent."""
    made = ControlNode(tmp_path_factory.mktemp("node"), f"e2e-{secrets.token_hex(4)}", {"unworked_after_s": 1e9})
    made.run("ls")
    store = Store(f"sqlite:///{made.directory / 'state' / 'muster.db'}")
    now = time.time()
    store.agents.save(
        [make_agent(f"agent-{n}", cpus=16, gpus=2, units_per_gpu=2, labels={"disk": "ssd"}) for n in (1, 2)]
    )
    runs = placed_on(make_session(1, name="runs", owner="ada", cluster_size=4, cpu=1), "agent-1")
    broke = make_session(5, name="broke", owner="ada", state=SessionState.TERMINATED, cluster_size=3)
    ended = zip(broke.kernels, (3, 0, 137), strict=True)
    kernels = tuple(replace(kernel, exit_code=code, container_state="exited") for kernel, code in ended)
    broke = replace(broke, kernels=kernels, result=Result.FAILURE, generation=1, ended_at=now, reason="exit code 3")
    waiting = [make_session(10 + n, name=f"sweep-{n}", owner="ada", cpu=900) for n in range(5)]
    held = replace(make_session(20, name="kept", owner="ada"), held_by="ada")
    store.add([replace(s, submitted_at=now - 60) for s in (runs, broke, *waiting, held)])
    message = "it asks for more than any agent of group default has (agent agent-1 comes closest and lacks 884 CPU)"
    store.save_waits({session.id: Wait(WaitCode.NEVER_FITS, message) for session in waiting})
    store.keep_logs([KernelLog(broke.id, "main1", gzip.compress(b"Traceback: " + b"x" * 300))])
    store.keep_logs([KernelLog(broke.id, "sub2", gzip.compress(b"Killed"))])
    amounts = {"cpu": Amount(16000, 4000, 1500.0), **dict.fromkeys(("mem", "gpu", "gpu_mem"), Amount(0, 0, 0.0))}
    store.samples.add([AgentSample("agent-1", "default", now - 60, amounts)])
    store.close()
    yield made
    made.remove_traces()


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_scrolls_sideways_and_the_current_page_is_in_sight(visit, width):
    page = visit("root", "admin", width=width)
    for path in PAGES:
        page.goto(path)
        page.get_by_role("heading", level=1).wait_for()
        assert page.evaluate(SIDEWAYS) == [], path
        current = page.locator('header [aria-current="page"]')
        if not path.startswith("/sessions/"):
            expect(current).to_have_count(1)
        expect(current.first).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_the_overview_and_the_queue_keep_nobody_out(visit, width, dark):
    page = visit("ada", width=width, dark=dark)
    for path in ("/overview", "/queue", "/sessions?show=all", "/sessions/broke"):
        page.goto(path)
        page.get_by_role("heading", level=1).wait_for()
        assert serious_findings(page) == [], path


def rgb(element: Locator, name: str) -> list[int]:
    """Return the red, green and blue of an element's colour."""
    shown = element.evaluate("(element, name) => getComputedStyle(element)[name]", name)
    return [int(part) for part in re.findall(r"\d+", shown)[:3]]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_a_failure_is_red_and_what_never_fits_is_filled_unlike_what_waits(visit, width, dark):
    page = visit("ada", width=width, dark=dark)
    page.goto("/sessions?show=all")
    red, green, blue = rgb(page.locator('[data-result="FAILURE"]').first, "color")
    assert red > 2 * max(green, blue)
    seen_green = rgb(page.locator('.badge[data-state="RUNNING"]').first, "color")
    assert seen_green[1] == max(seen_green)
    page.goto("/queue")
    never = page.get_by_text("never fits", exact=True).first
    waits = page.get_by_text("held", exact=True).first
    red, green, blue = rgb(never, "backgroundColor")
    assert red > 2 * max(green, blue)
    assert rgb(waits, "backgroundColor") not in ([red, green, blue], rgb(never, "color"))
    # The other way round: dark on light where the page is light on dark.
    assert (sum(rgb(never, "color")) < sum((red, green, blue))) == dark


@pytest.mark.parametrize("width", WIDTHS)
def test_actions_appear_with_a_selection_and_a_question_names_the_action(visit, width):
    page = visit("ada", width=width)
    actions = page.get_by_role("group", name="Actions for the selected sessions")
    expect(actions).to_be_hidden()
    page.get_by_label("Select sweep-0", exact=True).check()
    expect(actions.get_by_role("button")).to_have_text(["Terminate", "Hold", "Release"])
    expect(actions.get_by_role("button", name="Hold")).to_be_in_viewport(ratio=1)
    page.get_by_label("Select sweep-0", exact=True).uncheck()
    expect(actions).to_be_hidden()
    page.goto("/queue")
    actions = page.get_by_role("group", name="Actions for the selected sessions")
    expect(actions).to_be_hidden()
    page.get_by_label("Select sweep-0 … sweep-4").check()
    expect(actions).to_be_visible()
    expect(actions).to_contain_text("1 selected")
    actions.get_by_role("button", name="Cancel sessions").click()
    question = page.get_by_role("dialog")
    expect(question.get_by_role("button")).to_have_text(["Go back", "Cancel sessions"])
    question.get_by_role("button", name="Go back").click()
    expect(page.get_by_label("Select sweep-0 … sweep-4")).to_be_checked()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_reason_is_on_the_screen_and_alike_sessions_are_one_row(visit, width):
    page = visit("ada", width=width)
    for path in ("/sessions", "/queue"):
        page.goto(path)
        row = page.get_by_role("row", name=re.compile("sweep-0"))
        why = row.get_by_text("it asks for more than any agent of group default has")
        box = why.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    expect(row).to_contain_text("5 sessions")
    row.get_by_role("link").click()
    expect(page.get_by_role("row", name=re.compile(r"sweep-\d"))).to_have_count(5)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_failed_session_shows_the_ends_of_its_logs_and_each_containers_exit_code(visit, width):
    page = visit("ada", width=width)
    page.goto("/sessions/broke")
    expect(page.get_by_role("region", name="The end of the log of main1")).to_contain_text("Traceback")
    expect(page.get_by_text("main1: exit code 3")).to_be_visible()
    expect(page.get_by_role("region", name="The end of the log of sub2")).to_contain_text("Killed")
    for name, code in (("main1", 3), ("sub1", 0), ("sub2", 137)):
        expect(page.locator(f"#kernel-{name}")).to_contain_text(f"exited, exit code {code}")


@pytest.mark.parametrize("width", WIDTHS)
def test_filters_suggest_what_there_is(visit, width):
    page = visit("root", "admin", width=width)
    for path, label, suggested in (
        ("/sessions", "Name contains", "sweep-0"),
        ("/sessions", "Owner", "ada"),
        ("/sessions", "Project", "default"),
        ("/sessions", "Resource group", "default"),
        ("/usage", "User", "ada"),
        ("/usage", "Project", "default"),
        ("/folders", "Also shared with the project", "default"),
        ("/limits", "Name", "ada"),
        ("/reservations", "Resource group", "default"),
    ):
        page.goto(path)
        field = page.get_by_role("combobox", name=label, exact=True)
        expect(field).to_be_visible()
        words = field.evaluate("field => [...field.list.options].map(option => option.value)")
        assert suggested in words, (path, label)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dark", [False, True])
def test_an_unknown_path_says_so_and_leads_on_like_every_page(visit, width, dark):
    page = visit("ada", width=width, dark=dark)
    for path in ("/nope", "/sessions/nope"):
        page.goto(path)
        expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
        assert page.evaluate(SIDEWAYS) == [], path
        assert serious_findings(page) == [], path
        pages = page.get_by_role("navigation", name="Pages")
        pages.get_by_role("link", name="Queue").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Queue")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_overview_says_at_a_glance_what_runs_what_failed_and_what_is_free(visit, width):
    page = visit("ada", width=width)
    page.goto("/overview")
    states = page.get_by_role("region", name="Your sessions")
    expect(states.get_by_role("link", name="1 RUNNING")).to_be_visible()
    expect(states.get_by_role("link", name="6 PENDING")).to_be_visible()
    failures = page.get_by_role("region", name="Your failures of the last week")
    expect(failures).to_contain_text("exit code 3")
    group = page.get_by_role("region", name="Resource group default")
    for amount in ("of 32 CPU free", "of 8 fGPU free", "of 4 GPU free"):
        expect(group).to_contain_text(amount)
    expect(group.get_by_role("listitem").first).to_contain_text("kept")
    expect(group.get_by_role("link", name="6 sessions wait")).to_be_visible()
    expect(page.get_by_role("region", name="Agents with problems")).to_contain_text("None.")
    failures.get_by_role("link", name="broke").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("broke")
