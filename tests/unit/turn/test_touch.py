"""Which agents a decision calls for."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.session import LaunchStep, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.touch import NO_MEMORY, STRAY_FILES, Touched, leftovers, touches
from tests.reports import kernel_entry
from tests.strategies.agents import make_agent, reporting
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

S = SessionState


def managers(*agent_ids: str) -> tuple[Agent, ...]:
    return tuple(make_agent(agent_id, swarm="manager") for agent_id in agent_ids)


def scheduled(number: int, *agent_ids: str) -> Session:
    return placed_on(make_session(number, cluster_size=len(agent_ids)), *agent_ids, state=S.SCHEDULED)


def touched(
    agents: tuple[Agent, ...],
    *sessions: Session,
    away: Collection[str] = (),
    done_by: Mapping[str, Collection[str]] | None = None,
    resisting: Collection[str] = (),
) -> Touched:
    free = {agent.id for agent in agents} - set(away)
    launchable = {session.id for session in sessions if session.state is S.SCHEDULED}
    snapshot = Snapshot(agents, sessions, NOW)
    return touches(snapshot, free=free, launchable=launchable, done_by=done_by or {}, unclear={}, resisting=resisting)


def names(found: Touched) -> list[str]:
    return [session.name for session in found.launches]


def showing(agent: Agent, *, kernels: Collection[Any] = (), networks: Collection[Any] = ()) -> Agent:
    """Return the agent with these in its report."""
    return reporting(agent, kernels=list(kernels), networks=list(networks))


def network(name: str, session_id: str, driver: str = "bridge", generation: int = 7) -> dict[str, Any]:
    return {"name": name, "session_id": session_id, "driver": driver, "generation": generation}


def test_a_session_is_launched_when_its_agents_are_free():
    found = touched(managers("a1", "a2"), scheduled(1, "a1"), scheduled(2, "a2"), away={"a2"})
    assert (names(found), found.agents, found.needed) == (["s1"], {"a1"}, {"a1", "a2"})


def test_a_gang_over_agents_needs_them_all_and_the_keeper():
    agents = managers("a1", "a2", "a3")
    assert touched(agents, scheduled(1, "a2", "a3")).agents == {"a1", "a2", "a3"}
    for away in ("a1", "a2", "a3"):
        assert touched(agents, scheduled(1, "a2", "a3"), away={away}) == Touched((), frozenset(), {"a1", "a2", "a3"})


def test_a_gang_needs_the_keeper_even_if_its_earlier_overlay_exists():
    """Each launch has an overlay of its own."""
    again = replace(scheduled(1, "a2", "a3"), generation=7)
    keeper = showing(managers("a1")[0], networks=[network(again.network, again.id, "overlay")])
    agents = (keeper, *managers("a2", "a3"))
    assert touched(agents, again, resisting={"a1"}).agents == {"a1", "a2", "a3"}
    assert touched(agents, again, away={"a1"}) == Touched((), frozenset(), {"a1", "a2", "a3"})


def test_a_gang_over_agents_waits_while_there_is_no_keeper():
    workers = tuple(make_agent(agent_id, swarm="worker") for agent_id in ("a1", "a2"))
    found = touched(workers, scheduled(1, "a1", "a2"), scheduled(2, "a1"))
    assert (names(found), found.agents) == (["s2"], {"a1"})


def test_a_gang_that_finds_an_agent_away_keeps_the_others_for_itself():
    agents = managers("a1", "a2", "a3")
    sessions = (scheduled(1, "a1", "a2"), scheduled(2, "a2"), scheduled(3, "a3"))
    found = touched(agents, *sessions, away={"a1"})
    assert (names(found), found.agents) == (["s3"], {"a3"})
    assert names(touched(agents, *sessions)) == ["s1", "s2", "s3"]


def test_one_that_was_submitted_earlier_is_not_held_up_by_a_gang():
    agents = managers("a1", "a2")
    found = touched(agents, scheduled(1, "a2"), scheduled(2, "a1", "a2"), away={"a1"})
    assert names(found) == ["s1"]


@pytest.mark.parametrize(
    "session",
    [
        placed_on(make_session(cluster_size=2), "a1", "a2", state=S.TERMINATING),
        replace(placed_on(make_session(cluster_size=2), "a1", "a2", state=S.PREPARING), step=LaunchStep.RELEASING),
    ],
)
def test_a_word_is_passed_on_to_each_agent_that_has_not_done_it(session):
    agents = managers("a1", "a2")
    assert touched(agents, session).agents == {"a1", "a2"}
    assert touched(agents, session, away={"a1"}).agents == {"a2"}
    assert touched(agents, session, done_by={session.id: {"a2"}}).agents == {"a1"}
    assert touched(agents, session, done_by={session.id: {"a1", "a2"}}).agents == frozenset()


@pytest.mark.parametrize("state", [S.RUNNING, S.PREPARING])
def test_running_and_starting_sessions_need_no_visit(state):
    assert touched(managers("a1"), placed_on(make_session(), "a1", state=state)).agents == frozenset()


RUNNING = placed_on(make_session(cluster_size=2), "a1")
SPREAD = placed_on(make_session(cluster_size=2), "a1", "a2")


@pytest.mark.parametrize(
    ("session", "entry", "left"),
    [
        (RUNNING, kernel_entry(RUNNING, "main1"), False),
        (RUNNING, kernel_entry(RUNNING, "main1", generation=6), True),
        (RUNNING, kernel_entry(RUNNING, "main1", session_id="stray"), True),
        (placed_on(RUNNING, "a2"), kernel_entry(RUNNING, "main1"), True),
        (placed_on(RUNNING, "a1", state=S.TERMINATING), kernel_entry(RUNNING, "main1"), False),
        (placed_on(RUNNING, "a1", state=S.SCHEDULED), kernel_entry(RUNNING, "main1", generation=0), True),
    ],
)
def test_a_container_that_no_launch_accounts_for_is_a_leftover(session, entry, left):
    agents = (showing(make_agent("a1"), kernels=[entry]), make_agent("a2"))
    assert leftovers(agents[0], Snapshot(agents, (session,), NOW)) == (frozenset({"c-main1"} if left else ()))


@pytest.mark.parametrize(
    ("session", "agent_id", "shown", "left"),
    [
        (RUNNING, "a1", network(RUNNING.network, RUNNING.id), False),
        (RUNNING, "a2", network(RUNNING.network, RUNNING.id), True),
        (RUNNING, "a1", network("muster-stray", "stray"), True),
        (SPREAD, "a1", network(SPREAD.network, SPREAD.id, "overlay"), False),
        (SPREAD, "a1", network("muster-stray", "stray", "overlay"), True),
        (SPREAD, "a1", network(f"{SPREAD.network}0", SPREAD.id, "overlay"), True),
        (RUNNING, "a1", network(f"{RUNNING.network}-6", RUNNING.id, "overlay"), True),
        (SPREAD, "a2", network("muster-stray", "stray", "overlay"), False),
    ],
)
def test_a_network_that_no_launch_accounts_for_is_a_leftover_an_overlay_only_the_keepers(
    session, agent_id, shown, left
):
    agents = tuple(showing(agent, networks=[shown]) for agent in managers("a1", "a2"))
    agent = next(agent for agent in agents if agent.id == agent_id)
    assert leftovers(agent, Snapshot(agents, (session,), NOW)) == frozenset({shown["name"]} if left else ())


@pytest.mark.parametrize(
    ("session", "agent_id", "left"),
    [
        (RUNNING, "a1", False),
        (RUNNING, "a2", True),
        (SPREAD, "a2", False),
        (placed_on(RUNNING, "a1", state=S.TERMINATING), "a1", False),
        (replace(placed_on(RUNNING, "a1", state=S.PREPARING), step=LaunchStep.STARTING), "a1", False),
        (placed_on(RUNNING, "a1", state=S.SCHEDULED), "a1", True),
        (make_session(2), "a1", True),
    ],
)
def test_files_of_a_session_that_has_nothing_on_the_agent_are_leftovers(session, agent_id, left):
    agent = reporting(make_agent(agent_id), files=[RUNNING.id])
    found = leftovers(agent, Snapshot((agent,), (session,), NOW))
    assert found == frozenset({STRAY_FILES} if left else ())


def test_leftovers_call_for_a_visit_unless_they_resist_or_the_agent_is_away():
    stray = kernel_entry(RUNNING, "main1", session_id="stray")
    agents = tuple(showing(agent, kernels=[stray]) for agent in managers("a1", "a2", "a3"))
    assert touched(agents, away={"a1"}, resisting={"a2"}).agents == {"a3"}


@pytest.mark.parametrize(
    ("session", "facts", "cut_off"),
    [
        (RUNNING, {"address": None}, True),
        (RUNNING, {}, False),
        (RUNNING, {"address": None, "state": "exited"}, False),
        (placed_on(RUNNING, "a1", state=S.TERMINATING), {"address": None}, False),
        (replace(placed_on(RUNNING, "a1", state=S.PREPARING), step=LaunchStep.STARTING), {"address": None}, False),
    ],
)
def test_a_running_kernel_on_no_network_calls_for_a_visit(session, facts, cut_off):
    agent = showing(make_agent("a1"), kernels=[kernel_entry(session, "main1", **facts)])
    found = leftovers(agent, Snapshot((agent,), (session,), NOW))
    assert found == (frozenset({f"network of {session.id}"}) if cut_off else frozenset())


def test_the_keeper_of_an_overlay_that_a_kernel_was_cut_off_is_visited_too():
    entry = kernel_entry(SPREAD, "sub1", address=None)
    keeper, other, cut_off = managers("a0", "a1", "a2")
    agents = (keeper, other, showing(cut_off, kernels=[entry]))
    assert touched(agents, SPREAD).agents == {"a0", "a2"}
    assert touched(agents, SPREAD, resisting={"a2"}).agents == frozenset()


def test_the_keeper_is_the_first_manager_that_answers_and_is_not_slow():
    agents = (make_agent("a0", swarm="worker"), *managers("a1", "a2", "a3"))
    lost = replace(agents[1], state=AgentState.UNREACHABLE)
    keepers = [
        Snapshot(agents, (), NOW),
        Snapshot((agents[0], lost, *agents[2:]), (), NOW),
        Snapshot(agents, (), NOW, frozenset({"a1", "a2"})),
        Snapshot((agents[0],), (), NOW),
    ]
    assert [s.overlay_keeper and s.overlay_keeper.id for s in keepers] == ["a1", "a2", "a3", None]


@pytest.mark.parametrize("generation", [None, 7])
def test_an_agent_that_has_accepted_no_manifest_yet_is_visited(generation):
    agent = make_agent()
    agent = replace(agent, report=agent.report.model_copy(update={"generation": generation}))
    assert leftovers(agent, Snapshot((agent,), (), NOW)) == ({NO_MEMORY} if generation is None else set())
    assert touched((agent,)).agents == ({agent.id} if generation is None else set())
