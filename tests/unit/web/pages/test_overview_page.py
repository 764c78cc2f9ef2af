"""The overview: sessions by state, free capacity, the user's failures, the queues' heads and agents in trouble."""

import html
import re
import time
from dataclasses import replace

import pytest

from muster.core.agents.agent import AgentState
from muster.core.model.session import Result, SessionState
from muster.core.model.token import Scope
from muster.service.agents.agents import Agents
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on

S = SessionState


def section(text, identity):
    """Return the words of the section with that heading."""
    found = re.search(rf'<section[^>]*aria-labelledby="{identity}".*?</section>', text, re.DOTALL)[0]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", found)).split())


@pytest.fixture
def cluster(service):
    """Leave two groups: in `default` ada and bob wait, and an agent is silent; one of `gpu` is drained."""
    now = time.time()
    service.store.agents.save(
        [
            make_agent("a1", cpus=8, mem_bytes=16 << 30),
            replace(make_agent("a2", cpus=8), state=AgentState.UNREACHABLE, unreachable_since=now - 60),
            make_agent("g1", cpus=16, gpus=2, resource_group="gpu"),
            make_agent("g2", resource_group="gpu"),
        ]
    )
    Agents(service.store, service.settings).drain(["g2"], "new disk", "root")
    runs = replace(placed_on(make_session(1, name="runs", cpu=2), "a1"), owner="ada", submitted_at=now)

    def failed(number, name, owner, ended_at):
        session = make_session(number, name=name, state=S.TERMINATED)
        reason = "main1 ran out of memory"
        return replace(session, owner=owner, result=Result.FAILURE, reason=reason, ended_at=ended_at)

    ended = [
        failed(2, "broke", "ada", now - 30),
        failed(3, "old-failure", "ada", now - 30 * 86400),
        failed(4, "private-failure", "bob", now - 30),
    ]
    first = replace(make_session(5, name="private-head", cpu=7), owner="bob")
    second = replace(make_session(6, name="second", after=(first.id,)), owner="ada")
    service.store.add([runs, *ended, first, second])


@pytest.mark.usefixtures("cluster")
def test_a_user_sees_their_sessions_failures_and_place_and_nobody_elses(browser):
    text = browser("ada").get("/overview").text
    assert "private" not in text
    assert section(text, "states") == "Your sessions 1 PENDING 1 RUNNING"
    failures = section(text, "failures")
    assert "broke TERMINATED (FAILURE)" in failures
    assert "main1 ran out of memory" in failures
    assert "old-failure" not in failures
    head = section(text, "group-1")
    assert "Head of the queue another user's session second PENDING" in head
    assert "starts after other sessions" in head
    assert "2 sessions wait" in head


@pytest.mark.usefixtures("cluster")
def test_free_capacity_is_that_of_agents_that_take_sessions(browser):
    text = browser("ada").get("/overview").text
    assert "6 of 8 CPU free" in section(text, "group-1")
    assert "1 of 2 agents take sessions" in section(text, "group-1")
    assert "16 of 16 CPU free" in section(text, "group-2")
    assert "2 of 2 GPU free" in section(text, "group-2")


@pytest.mark.usefixtures("cluster")
def test_agents_with_problems_are_named_with_what_is_wrong(browser):
    troubled = section(browser("ada").get("/overview").text, "troubled")
    assert "a2 UNREACHABLE" in troubled
    assert "g2 ALIVE DRAINED new disk" in troubled
    assert "a1" not in troubled


@pytest.mark.usefixtures("cluster")
def test_an_administrator_sees_everybodys_sessions_and_the_home_page_is_the_overview(browser):
    root = browser("root", Scope.ADMIN)
    text = root.get("/").text
    assert section(text, "states") == "Sessions 2 PENDING 1 RUNNING"
    assert "private-head PENDING" in section(text, "group-1")
    part = root.get("/overview", headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert 'aria-labelledby="states"' in part


def test_an_empty_cluster_says_so(browser):
    text = browser("ada").get("/overview").text
    assert section(text, "states") == "Your sessions None is running or waiting. Launch a session"
    assert "There are no agents yet" in text


@pytest.mark.usefixtures("cluster")
def test_the_list_shows_what_failed(browser):
    text = browser("ada").get("/sessions?show=failed").text
    assert {"broke", "old-failure"} <= set(re.findall(r'<a href="/sessions/[^"]+">([^<]+)</a>', text))
    assert "runs" not in re.findall(r'<a href="/sessions/[^"]+">([^<]+)</a>', text)
    assert 'data-result="FAILURE"' in text


def test_what_can_never_start_is_no_head_of_a_queue(browser, service):
    service.store.agents.save([make_agent("a1", cpus=8)])
    waiting = [make_session(1, name="impossible", cpu=900), make_session(2, name="possible", cpu=1)]
    service.store.add([replace(session, owner="ada") for session in waiting])
    head = section(browser("ada").get("/overview").text, "group-1")
    assert "Head of the queue possible PENDING" in head
    assert "impossible" not in head
    assert "2 sessions wait" in head
