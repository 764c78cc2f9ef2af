"""Defragmentation: restartable sessions start anew elsewhere where one that waits fits in their place."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.lifecycle.applied import applied
from muster.core.lifecycle.transitions import ended, place, preempt
from muster.core.model.policy import GroupPolicy, SchedulingPolicy
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.defragment import RUNS_BETWEEN_MOVES_S
from muster.core.scheduling.memory.pass_memory import PassMemory
from muster.core.scheduling.schedule import schedule
from muster.core.simulation.simulation import Cluster, Job, simulate
from muster.core.whatif.hypothesis import Moved
from tests.properties import dear
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.snapshots import snapshots
from tests.strategies.values import NOW

POLICY = SchedulingPolicy(GroupPolicy(defragment=True))
AGENTS = (make_agent("a1", cpus=8), make_agent("a2", cpus=8))


def runs(number: int, agent: str, seconds: float = 600, **values: Any) -> Session:
    session = placed_on(make_session(number, **{"cpu": 3, "requeue": True, **values}), agent)
    return replace(session, started_at=NOW - seconds)


def world(*sessions: Session, agents: Any = AGENTS, **policy: Any) -> Snapshot:
    return Snapshot(agents, sessions, NOW, policy=SchedulingPolicy(GroupPolicy(**{"defragment": True, **policy})))


def moved(snapshot: Snapshot) -> list[str]:
    names = {session.id: session.name for session in snapshot.sessions}
    return [names[each.session_id] for each in schedule(snapshot).preemptions if each.moves]


HEAD = make_session(9, cpu=8)


def test_the_session_that_loses_least_moves_and_the_head_says_so():
    snapshot = world(runs(1, "a1", 7200), runs(2, "a2"), HEAD)
    assert moved(snapshot) == ["s2"]
    wait = schedule(snapshot).waits[HEAD.id]
    assert (wait.code, wait.estimated_start) == (WaitCode.PREEMPTING, NOW)
    assert wait.message == "starts when s2 has made room and started anew elsewhere"


def test_nothing_moves_unless_the_site_says_so():
    assert moved(world(runs(1, "a1"), runs(2, "a2"), HEAD, defragment=False)) == []


@pytest.mark.parametrize(
    ("values", "head"),
    [
        ({"requeue": False}, HEAD),
        ({"requeue": False, "preemptible": True}, HEAD),
        ({"priority": 60}, HEAD),
        ({"cpu": 5}, HEAD),
        ({"requeues": 1}, HEAD),
        ({"time_limit": "11m"}, HEAD),
        ({}, make_session(9, cpu=8, after=[make_session(1).id, make_session(2).id])),
    ],
    ids=["not restartable", "would end", "higher priority", "no room elsewhere", "was moved", "ends soon", "needed"],
)
def test_nobody_moves_who_must_not_or_in_vain(values, head):
    assert moved(world(runs(1, "a1", **values), runs(2, "a2", **values), head)) == []


def test_one_that_was_queued_again_moves_once_it_has_run_for_long():
    long = RUNS_BETWEEN_MOVES_S
    assert moved(world(runs(1, "a1", long, requeues=1), runs(2, "a2", long - 1, requeues=1), HEAD)) == ["s1"]


def test_several_move_together_and_no_more_than_need_to():
    sessions = [runs(1, "a1", 60, cpu=2), runs(2, "a1", 120, cpu=2), runs(3, "a2", 900, cpu=3, requeue=False)]
    assert moved(world(*sessions, make_session(9, cpu=7))) == ["s1", "s2"]


def test_the_head_starts_first_and_then_the_moved_one_though_it_is_older():
    snapshot = world(runs(1, "a1", 7200), runs(2, "a2"), HEAD, make_session(10, cpu=5))
    plan = schedule(snapshot)
    assert not plan.placements
    going = applied(snapshot, preempt(plan, snapshot))
    assert [s.moved_for for s in going.sessions] == [None, HEAD.id, None, None]
    still = schedule(going)
    assert not still.placements
    assert not still.preemptions
    (_, going_one, _, _) = going.sessions
    waiting = applied(going, [ended(going_one, {}, NOW)])
    after = applied(waiting, place(schedule(waiting), waiting))
    by_name = {session.name: session for session in after.sessions}
    assert (by_name["s9"].agents, by_name["s2"].agents, by_name["s10"].agents) == (("a2",), ("a1",), ())
    assert by_name["s2"].moved_for is None


@st.composite
def spread_out(draw: st.DrawFn) -> Snapshot:
    """Draw agents on which small sessions run, and a few that wait."""
    free = {f"a{number}": draw(st.integers(4, 8)) for number in range(draw(st.integers(2, 3)))}
    agents = tuple(make_agent(name, cpus=cpus) for name, cpus in free.items())
    sessions = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        agent, cpu = draw(st.sampled_from(sorted(free))), draw(st.integers(1, 4))
        if cpu <= free[agent]:
            free[agent] -= cpu
            values = {
                "requeue": draw(st.sampled_from((True, True, True, False))),
                "priority": draw(st.sampled_from((40, 50, 50, 60))),
                "time_limit": draw(st.sampled_from((None, None, "1h"))),
                "requeues": draw(st.sampled_from((0, 0, 1))),
            }
            sessions.append(runs(number, agent, draw(st.integers(0, 3000)), cpu=cpu, **values))
    for number in range(10, 10 + draw(st.integers(1, 4))):
        limit = draw(st.sampled_from((None, "10m", "2h")))
        sessions.append(make_session(number, cpu=draw(st.integers(1, 8)), time_limit=limit))
    return world(*sessions, agents=agents)


@dear
@given(st.one_of(spread_out(), snapshots()))
def test_only_restartable_ones_move_and_head_and_moved_ones_start(snapshot):
    snapshot = replace(snapshot, policy=POLICY)
    plan = schedule(snapshot)
    by_id = {session.id: session for session in snapshot.sessions}
    for head in {each.for_session_id for each in plan.preemptions}:
        ids = tuple(each.session_id for each in plan.preemptions if each.for_session_id == head)
        assert all(by_id[key].spec.requeue and by_id[key].state is SessionState.RUNNING for key in ids)
        assert by_id[head].state is SessionState.PENDING
        assert head not in {placement.session_id for placement in plan.placements}
        # What starts now runs, and those that move have ended: the head starts, and so does each of them.
        events = [*place(plan, snapshot), *preempt(plan, snapshot)]
        then = applied(snapshot, events)
        terminating = [s for s in then.sessions if s.id in ids]
        then = applied(then, [ended(session, {}, NOW) for session in terminating])
        placed = {placement.session_id for placement in schedule(then).placements}
        assert placed.issuperset({head, *ids})


@given(spread_out(), st.sampled_from((1, 600, 1800, 3600)))
def test_what_a_pass_takes_over_from_an_earlier_one_delays_no_move(snapshot, seconds):
    memory = PassMemory()
    schedule(snapshot, memory)
    later = replace(snapshot, now=snapshot.now + seconds)
    assert schedule(later, memory).preemptions == schedule(later).preemptions


def test_one_that_was_queued_again_moves_in_time_though_nothing_else_changes():
    memory = PassMemory()
    snapshot = world(runs(1, "a1", RUNS_BETWEEN_MOVES_S - 30, requeues=1), runs(2, "a2", requeue=False), HEAD)
    for seconds, moving in ((0, []), (29.9, []), (30, ["s1"])):
        plan = schedule(replace(snapshot, now=NOW + seconds), memory)
        assert [each.session_id for each in plan.preemptions] == [make_session(1).id for _ in moving]


@given(spread_out())
def test_who_starts_at_once_is_the_same_with_and_without(snapshot):
    plans = [
        schedule(replace(snapshot, policy=SchedulingPolicy(GroupPolicy(defragment=moves)))) for moves in (True, False)
    ]
    ahead = {session.id for session in snapshot.pending} - {s for plan in plans for s in plan.waits}
    assert all(ahead <= {placement.session_id for placement in plan.placements} for plan in plans)
    if not plans[0].preemptions:
        assert plans[0].placements == plans[1].placements


def test_a_simulated_cluster_packs_itself_again():
    def job(number: int, at: float, duration_s: float, **values: Any) -> Job:
        return Job(replace(make_session(number, requeue=True, **values), submitted_at=at), duration_s)

    jobs = [
        job(1, 0, 4000, cpu=5),
        job(2, 1, 100, cpu=3),
        job(3, 2, 4000, cpu=3),
        job(4, 200, 50, cpu=8),
    ]
    waits = {}
    for moves in (True, False):
        policy = SchedulingPolicy(GroupPolicy(defragment=moves))
        done = simulate(jobs, Cluster(AGENTS, policy))
        waits[moves] = done.lives[3].waited_s
        assert done.preemptions == moves
        assert all(life.fate == "ended" for life in done.lives)
    assert waits == {True: 0.0, False: 3800.0}


def test_the_hypothesis_of_what_if_is_the_same_move():
    snapshot = world(runs(1, "a1", 7200), runs(2, "a2"), HEAD)
    (then,) = (Moved((each.session_id,)) for each in schedule(snapshot).preemptions)
    assert len(schedule(then.applied(snapshot, HEAD.id)).placements) == 2
