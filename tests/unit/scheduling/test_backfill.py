"""Backfill: sessions pass the head of the queue unless they would delay it."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.model.plan import Plan
from muster.core.model.policy import GroupPolicy, SchedulingPolicy
from muster.core.model.session import LaunchStep, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.committed import committed
from muster.core.scheduling.future import end_of
from muster.core.scheduling.schedule import schedule
from tests.properties import dear
from tests.strategies.agents import make_agent
from tests.strategies.sessions import first_for, make_session, placed_on
from tests.strategies.snapshots import limited_queues, snapshots
from tests.strategies.values import NOW

HOUR = 3600.0


def running(number: int, agent: str = "a1", **values: Any) -> Session:
    return replace(placed_on(make_session(number, **values), agent), started_at=NOW)


def test_a_session_whose_processes_have_ended_gives_its_place_to_the_next():
    ended = running(1, cpu="4")
    kernels = tuple(replace(kernel, container_state="exited") for kernel in ended.kernels)
    ended = replace(ended, kernels=kernels, state=SessionState.TERMINATING)
    waiting = make_session(2, cpu="4")
    assert decided(ended, waiting)[1] == [waiting.name]
    still_runs = replace(ended, kernels=(replace(kernels[0], container_state="running"),))
    restarts = replace(ended, step=LaunchStep.RESTARTING)
    for holds in (still_runs, restarts):
        assert decided(holds, waiting)[1] == []


def decided(*sessions: Session, passes: int = 20, cpus: int = 4) -> tuple[Plan, list[str]]:
    """Return the plan for one agent, and the names of those that start."""
    policy = SchedulingPolicy(GroupPolicy(reserve_after_passes=passes))
    snapshot = Snapshot((make_agent(cpus=cpus),), sessions, NOW, policy=policy)
    plan = schedule(snapshot)
    names = {session.id: session.name for session in sessions}
    return plan, [names[placement.session_id] for placement in plan.placements]


def starts_at(snapshot: Snapshot, holders: list[Session], head: Session) -> float:
    """Return when the head starts if nothing else does, the slow way: by a whole decision after each end."""
    times = sorted({snapshot.now, *(end_of(session, snapshot.now) for session in holders)})
    for at in times:
        left = [session for session in holders if not (end_of(session, snapshot.now) <= at < math.inf)]
        alone = Snapshot(snapshot.agents, (*left, head), at, snapshot.slow)
        if schedule(alone).placements:
            return at
    return math.inf


def heads(snapshot: Snapshot, plan: Plan) -> list[Session]:
    """Return the groups' first sessions that do not fit: those that have been first in one pass more than before."""
    return [
        session
        for session in snapshot.pending
        if session.id in plan.waits
        and plan.waits[session.id].code is WaitCode.BUSY
        and plan.waits[session.id].passes > (session.wait.passes if session.wait else 0)
    ]


@given(snapshots(max_sessions=8))
def test_sessions_that_pass_the_head_do_not_delay_it(snapshot):
    without_preemption = replace(snapshot.policy.default, preemption=False)
    snapshot = replace(snapshot, policy=SchedulingPolicy(without_preemption))
    plan = schedule(snapshot)
    order = sorted(snapshot.pending, key=lambda s: (-s.spec.priority, s.submitted_at, s.id))
    for head in heads(snapshot, plan):
        expected = plan.waits[head.id].estimated_start
        ahead = {session.id for session in order[: order.index(head)]}
        after = committed(snapshot, plan).sessions
        holders = [session for session in after if session.state is not SessionState.PENDING and session.id != head.id]
        before_it = [session for session in holders if session.id in ahead or session in snapshot.placed]
        assert starts_at(snapshot, before_it, head) == (math.inf if expected is None else expected)
        if expected is not None:
            assert starts_at(snapshot, holders, head) == expected


@given(snapshots(max_sessions=8))
def test_an_estimated_start_is_never_in_the_past_nor_promised_to_what_never_fits(snapshot):
    plan = schedule(snapshot)
    for wait in plan.waits.values():
        if wait.estimated_start is not None:
            assert wait.estimated_start >= snapshot.now
            assert wait.code in {WaitCode.BUSY, WaitCode.BEHIND, WaitCode.PREEMPTING}


def test_a_session_that_ends_before_the_head_can_start_passes_it():
    runs = running(1, cpu=3, time_limit="1h")
    head = make_session(2, cpu=4)
    plan, started = decided(runs, head, make_session(3, cpu=1, time_limit="1h"))
    assert started == ["s3"]
    assert plan.waits[head.id].estimated_start == NOW + HOUR


def test_a_session_that_would_outlast_the_heads_start_waits_for_it():
    runs, head = running(1, cpu=3, time_limit="1h"), make_session(2, cpu=4)
    long = make_session(3, cpu=1, time_limit="2h")
    plan, started = decided(runs, head, long)
    assert started == []
    assert plan.waits[long.id].code is WaitCode.BEHIND
    assert plan.waits[long.id].message == "starting it now would delay s2, which is ahead of it in the queue"
    assert plan.waits[long.id].estimated_start is None


def test_a_session_of_any_length_passes_where_the_head_leaves_room_for_both():
    runs, head = running(1, cpu=3, time_limit="1h"), make_session(2, cpu=3)
    assert decided(runs, head, make_session(3, cpu=1))[1] == ["s3"]


def test_one_that_is_over_in_time_takes_nothing_of_what_others_may_keep():
    """Of ten cores five are free, and two beside the head when it starts."""
    runs, head = running(1, cpu=5, time_limit="1h"), make_session(2, cpu=8)
    short, small, long = make_session(3, cpu=3, time_limit="30m"), make_session(4, cpu=1), make_session(5, cpu=1)
    plan, started = decided(runs, head, short, small, long, cpus=10)
    assert started == ["s3", "s4", "s5"]
    endless = replace(short, spec=long.spec)
    plan, started = decided(runs, head, endless, small, long, cpus=10)
    assert started == ["s4", "s5"]
    assert plan.waits[endless.id].code is WaitCode.BEHIND


def test_without_time_limits_others_pass_until_the_head_has_waited_its_passes():
    runs, small = running(1, cpu=3), make_session(3, cpu=1)
    waited = make_session(2, cpu=4, wait=first_for(1))
    assert decided(runs, waited, small, passes=3)[1] == ["s3"]
    patient = make_session(2, cpu=4, wait=first_for(2))
    plan, started = decided(runs, patient, small, passes=3)
    assert started == []
    assert plan.waits[patient.id].passes == 3
    assert plan.waits[small.id].code is WaitCode.BEHIND


def test_the_wait_says_that_sessions_without_a_time_limit_keep_the_start_unknown():
    endless, limited = running(1, cpu=2), running(2, cpu=1, time_limit="1h")
    head, small = make_session(3, cpu=4, wait=first_for(19)), make_session(4, cpu=1)
    plan, started = decided(endless, limited, head, small)
    assert started == []
    assert [plan.waits[session.id].endless for session in (head, small)] == [1, 1]
    plan, _ = decided(replace(endless, spec=limited.spec), limited, head, small)
    assert [plan.waits[session.id].endless for session in (head, small)] == [0, 0]


@given(st.integers(1, 40))
def test_a_stream_of_small_sessions_does_not_starve_a_large_one(passes):
    """Each pass one of the small ones has ended, and another has come."""
    policy = SchedulingPolicy(GroupPolicy(reserve_after_passes=5))
    agents = (make_agent(cpus=2),)
    large = make_session(1, cpu=2)
    small = [placed_on(make_session(number, cpu=1), "a1") for number in (2, 3)]
    for number in range(4, 4 + passes):
        snapshot = Snapshot(agents, (*small, large, make_session(number, cpu=1)), NOW + number, policy=policy)
        plan = schedule(snapshot)
        after = committed(snapshot, plan).sessions
        if any(session.id == large.id and session.state is SessionState.RUNNING for session in after):
            return
        large = replace(large, wait=plan.waits[large.id])
        small = [session for session in after if session.state is SessionState.RUNNING][1:]
    assert passes <= 7


def test_a_head_that_no_agent_can_hold_now_stops_nobody():
    gone = replace(make_agent("a2", cpus=64), drain_reason="disks")
    wants, small = make_session(1, cpu=32, wait=first_for(99)), make_session(2)
    plan = schedule(Snapshot((make_agent(cpus=4), gone), (wants, small), NOW))
    assert [placement.session_id for placement in plan.placements] == [small.id]
    assert plan.waits[wants.id].code is WaitCode.BUSY


def test_sessions_behind_the_head_have_estimated_starts_one_after_another():
    runs = running(1, cpu=4, time_limit="1h")
    queue = [make_session(number, cpu=4, time_limit="30m") for number in (2, 3, 4)]
    plan, started = decided(runs, *queue)
    assert started == []
    assert [plan.waits[session.id].estimated_start for session in queue] == [
        NOW + HOUR,
        NOW + 1.5 * HOUR,
        NOW + 2 * HOUR,
    ]


def test_the_estimate_of_one_behind_the_head_knows_that_it_may_pass():
    """At the end of the first hour two cores are free: the head needs four, and the small one is over in time."""
    first, second = running(1, cpu=2, time_limit="1h"), running(2, cpu=2, time_limit="3h")
    head, small = make_session(3, cpu=4, time_limit="1h"), make_session(4, cpu=2, time_limit="90m")
    plan, started = decided(first, second, head, small)
    assert started == []
    assert plan.waits[head.id].estimated_start == NOW + 3 * HOUR
    assert plan.waits[small.id].estimated_start == NOW + HOUR


@dear
@given(limited_queues())
def test_sessions_start_when_it_was_estimated_if_all_end_by_their_time_limits(snapshot):
    plan = schedule(snapshot)
    expected = {session_id: plan.waits[session_id].estimated_start for session_id in plan.waits}
    starts: dict[str, float] = {}
    while len(starts) < len(expected):
        world = committed(snapshot, plan)
        at = min(end_of(session, world.now) for session in world.placed)
        left = [s for s in world.sessions if s.state is SessionState.PENDING or end_of(s, world.now) > at]
        snapshot = replace(world, now=at, sessions=tuple(left))
        plan = schedule(snapshot)
        starts |= {placement.session_id: at for placement in plan.placements}
    assert starts == expected


@pytest.mark.parametrize("backfill", [True, False])
def test_the_estimate_knows_that_a_pass_places_anew_what_it_has_placed(backfill):
    """At the end of both sessions s3 and s4 come to lie on one agent, so that s5 fits beside s2."""
    runs = running(0, cpu=2, time_limit="10h"), running(1, "a2", cpu=4, time_limit="10h")
    sizes = (1, "20h"), (2, "10h"), (2, "10h"), (3, "10h")
    queue = [make_session(number, cpu=cpu, time_limit=limit) for number, (cpu, limit) in enumerate(sizes, 2)]
    policy = SchedulingPolicy(GroupPolicy(backfill=backfill))
    agents = make_agent("a1", cpus=4), make_agent("a2", cpus=4)
    plan = schedule(Snapshot(agents, (*runs, *queue), NOW, policy=policy))
    assert [placement.session_id for placement in plan.placements] == [queue[0].id]
    assert {plan.waits[session.id].estimated_start for session in queue[1:]} == {NOW + 10 * HOUR}


def test_a_session_that_is_being_ended_counts_as_gone_at_once():
    leaving = replace(running(1, cpu=4), state=SessionState.TERMINATING)
    head, long = make_session(2, cpu=4), make_session(3, cpu=4)
    plan, started = decided(leaving, head, long)
    assert started == []
    assert plan.waits[head.id].estimated_start == NOW
