"""Agents that are closed to some sessions: by reservations, and where room is kept for a gang that lost an agent."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.policy import SchedulingPolicy
from muster.core.model.reservation import Reservation
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.admission import Admission
from muster.core.scheduling.closures import could_hold
from tests.properties import examples
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW

HOUR = 3600.0
AGENTS = (make_agent("a1"), make_agent("a2"), make_agent("g1", resource_group="gpu"))


def window(begin: float = 0, end: float = HOUR, **fields: Any) -> Reservation:
    return Reservation("w", NOW + begin, NOW + end, **fields)


def closed(session: Session, *reservations: Reservation, sessions: tuple[Session, ...] = ()) -> set[str]:
    snapshot = Snapshot(AGENTS, (session, *sessions), NOW, reservations=reservations)
    return set(Admission(snapshot).closed_agents(session))


def test_no_agent_is_closed_where_nothing_is_reserved():
    assert closed(make_session()) == set()


@pytest.mark.parametrize(
    ("reservation", "agents"),
    [
        (window(), {"a1", "a2"}),
        (window(agents=frozenset({"a2", "g1"})), {"a2"}),
        (window(resource_group="default"), {"a1", "a2"}),
        (window(resource_group="gpu"), set()),
        (window(-HOUR, 0), set()),
        (window(users=frozenset({"ada"})), set()),
        (window(users=frozenset({"bob"})), {"a1", "a2"}),
        (window(projects=frozenset({"vision"})), set()),
        (window(users=frozenset({"bob"}), projects=frozenset({"audio"})), {"a1", "a2"}),
    ],
)
def test_a_reservation_closes_its_agents_to_users_that_it_does_not_name(reservation, agents):
    assert closed(make_session(project="vision", time_limit="30m"), reservation) == agents


@pytest.mark.parametrize(
    ("time_limit", "agents"), [(None, {"a1", "a2"}), ("1h", set()), ("1h1s", {"a1", "a2"}), ("30m", set())]
)
def test_a_coming_window_closes_its_agents_to_what_may_still_run_when_it_begins(time_limit, agents):
    assert closed(make_session(time_limit=time_limit), window(HOUR, 2 * HOUR)) == agents


def test_a_wait_for_a_maintenance_window_names_it_and_its_end():
    session = make_session()
    snapshot = Snapshot(AGENTS, (session,), NOW, reservations=(window(HOUR, 2 * HOUR, agents=frozenset({"a1"})),))
    wait = Admission(snapshot).window(session)
    assert (wait.code, wait.until, wait.filtered) == (WaitCode.WINDOW, NOW + 2 * HOUR, {"maintenance w": 1})
    assert wait.message == (
        "agents are closed to it: 1 for maintenance w;"
        " with a time limit that ends before 2025-11-21 12:20:00 UTC it could start sooner"
    )


def test_sessions_of_a_kind_share_what_is_closed_to_them():
    sessions = [make_session(number, time_limit=limit) for number, limit in enumerate(("1h", "2h", "3h"), 1)]
    admission = Admission(Snapshot(AGENTS, tuple(sessions), NOW, reservations=(window(HOUR, 2 * HOUR),)))
    one, two, three = map(admission.closed_agents, sessions)
    assert one == frozenset()
    assert two is three


@st.composite
def reservations(draw: st.DrawFn) -> Reservation:
    begin = draw(st.integers(-2, 3))
    return Reservation(
        f"w{draw(st.integers(0, 999))}",
        NOW + begin * HOUR,
        NOW + (begin + draw(st.integers(1, 3))) * HOUR,
        resource_group=draw(st.sampled_from((None, "default", "gpu"))),
        agents=frozenset(draw(st.sets(st.sampled_from(("a1", "a2", "g1")), max_size=2))),
        users=frozenset(draw(st.sets(st.sampled_from(("ada", "bob")), max_size=1))),
        projects=frozenset(draw(st.sets(st.sampled_from(("x", "y")), max_size=1))),
    )


@examples(60)
@given(st.lists(reservations(), max_size=4, unique_by=lambda r: r.name), st.data())
def test_agents_are_closed_exactly_where_a_session_could_meet_a_window_that_does_not_admit_it(windows, data):
    sessions = [
        make_session(
            number,
            owner=data.draw(st.sampled_from(("ada", "bob", "eve"))),
            project=data.draw(st.sampled_from(("x", "y"))),
            resource_group=data.draw(st.sampled_from(("default", "gpu"))),
            time_limit=data.draw(st.sampled_from((None, "30m", "1h", "90m", "5h"))),
        )
        for number in range(1, 5)
    ]
    admission = Admission(Snapshot(AGENTS, tuple(sessions), NOW, reservations=tuple(windows)))
    for session in sessions:
        ends = NOW + (session.spec.time_limit or 10**9)
        meets = [
            w
            for w in windows
            if w.ends_at > NOW and w.begins_at < ends and not w.admits(session.owner, session.spec.project)
        ]
        group = [agent for agent in AGENTS if agent.resource_group == session.spec.resource_group]
        expected = {agent.id for agent in group if any(w.covers(agent.id, agent.resource_group) for w in meets)}
        assert admission.closed_agents(session) == expected


def stranded(number: int = 1, **values: Any) -> Session:
    """Return a gang of two that ran on a1 and a2 and is queued again."""
    values = {"stranded_on": ("a1", "a2"), "requeues": 1, "cluster_size": 2, "cluster_mode": "multi-node", **values}
    return make_session(number, **{"cpu": 3, "mem": "1G", **values})


def agent(agent_id: str, *, away_for: float | None = None, **fields: Any) -> Agent:
    made = make_agent(agent_id, cpus=4, swarm="manager")
    if away_for is None:
        return replace(made, **fields)
    return replace(made, state=AgentState.LOST, unreachable_since=NOW - away_for, **fields)


def kept(*agents: Agent, session: Session | None = None, others: tuple[Session, ...] = ()) -> tuple[set[str], set[str]]:
    """Return the agents closed to the stranded gang, and to another session."""
    gang, somebody = session or stranded(), make_session(9, name="other")
    snapshot = Snapshot(agents, (gang, somebody, *others), NOW, policy=SchedulingPolicy(hold_repaired_s=600))
    admission = Admission(snapshot)
    return set(admission.closed_agents(gang)), set(admission.closed_agents(somebody))


@pytest.mark.parametrize(
    ("reservations", "agents"),
    [
        ([], {"a1"}),
        ([window(agents=frozenset({"a2"}))], {"a2"}),
        ([window(agents=frozenset({"a2"}), users=frozenset({"ada"}))], {"a1"}),
        ([window(agents=frozenset({"a1"}))], {"a1"}),
        ([window(HOUR, 2 * HOUR, agents=frozenset({"a2"}))], {"a1"}),
    ],
)
def test_a_session_keeps_off_where_its_launch_failed_while_another_is_open_to_it(reservations, agents):
    session = replace(make_session(time_limit="30m"), failed_on=("a1",))
    assert closed(session, *reservations) == agents


@pytest.mark.parametrize(
    ("ids", "spec", "could"),
    [
        (("a1", "a2"), {"cluster_mode": "multi-node"}, True),
        (("a1",), {"cluster_mode": "multi-node"}, False),
        (("a1", "a2"), {"cluster_mode": "single-node"}, False),
        (("a1", "a2"), {"cluster_mode": "multi-node", "agents": ["a1"]}, False),
        ((), {"cluster_mode": "multi-node"}, False),
    ],
)
def test_agents_could_hold_a_session_if_together_they_have_room_and_it_allows_them(ids, spec, could):
    session = make_session(1, cluster_size=2, cpu=8, **spec)
    agents = tuple(make_agent(agent_id, swarm="manager") for agent_id in ids)
    assert could_hold(session, agents, Snapshot(agents, (session,), NOW)) is could


def test_room_is_kept_for_a_gang_while_the_agent_that_it_lost_may_come_back():
    assert kept(agent("a1"), agent("a2", away_for=600)) == (set(), {"a1"})
    assert kept(agent("a1"), agent("a2", away_for=601)) == (set(), set())


def test_room_is_kept_for_a_gang_whose_agents_are_all_back_and_hold_it():
    assert kept(agent("a1"), agent("a2"), agent("a3")) == (set(), {"a1", "a2"})
    taken = placed_on(make_session(5, cpu=2), "a2")
    assert kept(agent("a1"), agent("a2"), others=(taken,)) == (set(), set())


def test_no_room_is_kept_where_the_gang_cannot_come_back_to_it():
    assert kept(agent("a1"), agent("a2", drain_reason="disks")) == (set(), set())
    assert kept(agent("a1")) == (set(), set())
    assert kept(agent("a1"), agent("a2"), session=stranded(held_by="ada")) == (set(), set())


@pytest.mark.parametrize("users", [set(), {"bob"}])
def test_no_room_is_kept_for_a_gang_that_a_window_keeps_from_it(users):
    """The users for whom the agent is reserved would otherwise wait until the reservation is over."""
    gang, bobs = stranded(stranded_on=("a1",), cpu=1), make_session(9, owner="bob")
    reserved = window(agents=frozenset({"a1"}), users=frozenset(users))
    snapshot = Snapshot((agent("a1"), agent("a2")), (gang, bobs), NOW, reservations=(reserved,))
    admission = Admission(snapshot)
    assert admission.closed_agents(gang) == {"a1"}
    assert admission.closed_agents(bobs) == (set() if users else {"a1"})
    assert Admission(replace(snapshot, reservations=())).closed_agents(bobs) == {"a1"}


def test_two_stranded_gangs_are_kept_from_each_others_agents():
    one, two = stranded(1, stranded_on=("a1",), cpu=1), stranded(2, stranded_on=("a2",), cpu=1)
    snapshot = Snapshot((agent("a1"), agent("a2")), (one, two), NOW)
    admission = Admission(snapshot)
    assert (admission.closed_agents(one), admission.closed_agents(two)) == ({"a2"}, {"a1"})
