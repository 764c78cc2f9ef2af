"""The sessions that give way to others if a group's policy allows preemption."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.model.plan import Plan
from muster.core.model.policy import GroupPolicy, SchedulingPolicy
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.placement import PlacementState
from muster.core.scheduling.schedule import schedule
from tests.properties import dear
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.snapshots import snapshots
from tests.strategies.values import NOW

PREEMPTING = SchedulingPolicy(GroupPolicy(preemption=True))


def running(number: int, agent: str = "a1", *, since: float = 0.0, **values: Any) -> Session:
    session = make_session(number, **{"priority": 10, "preemptible": True, **values})
    return replace(placed_on(session, agent), started_at=NOW - since)


def decided(*sessions: Session, agents: int = 1, policy: SchedulingPolicy = PREEMPTING) -> Plan:
    known = tuple(make_agent(f"a{number}", cpus=4) for number in range(1, agents + 1))
    return schedule(Snapshot(known, sessions, NOW, policy=policy))


def without(snapshot: Snapshot, gone: Iterable[str]) -> Snapshot:
    gone = set(gone)
    return replace(snapshot, sessions=tuple(session for session in snapshot.sessions if session.id not in gone))


@given(snapshots(max_sessions=8))
def test_only_running_preemptible_sessions_of_lower_priority_and_the_same_group_give_way(snapshot):
    plan = schedule(snapshot)
    by_id = {session.id: session for session in snapshot.sessions}
    if not snapshot.policy.default.preemption:
        assert plan.preemptions == ()
    assert len({preemption.session_id for preemption in plan.preemptions}) == len(plan.preemptions)
    for preemption in plan.preemptions:
        leaves, comes = by_id[preemption.session_id], by_id[preemption.for_session_id]
        assert leaves.state is SessionState.RUNNING
        assert leaves.spec.preemptible
        assert leaves.spec.priority < comes.spec.priority
        assert leaves.spec.resource_group == comes.spec.resource_group
        assert plan.waits[comes.id].code is WaitCode.PREEMPTING


@given(snapshots(max_sessions=8))
def test_preempting_makes_the_room_that_it_is_for_and_no_victim_is_needless(snapshot):
    plan = schedule(snapshot)
    for comes in {preemption.for_session_id for preemption in plan.preemptions}:
        leaving = [p.session_id for p in plan.preemptions if p.for_session_id == comes]
        others = {session.id for session in snapshot.pending} - {comes}
        started = {placement.session_id: placement for placement in plan.placements}
        after = replace(
            snapshot,
            sessions=tuple(
                replace(
                    session,
                    state=SessionState.SCHEDULED,
                    kernels=tuple(
                        replace(k, allocation=started[session.id].allocations[k.id]) for k in session.kernels
                    ),
                )
                if session.id in started
                else session
                for session in snapshot.sessions
                if session.id in started or session.id not in others
            ),
        )
        assert comes in {placement.session_id for placement in schedule(without(after, leaving)).placements}
        for spared in leaving:
            rest = [victim for victim in leaving if victim != spared]
            assert comes not in {placement.session_id for placement in schedule(without(after, rest)).placements}


def test_preemption_is_off_by_default():
    assert decided(running(1, cpu=4), make_session(2, cpu=4), policy=SchedulingPolicy()).preemptions == ()


def test_a_session_that_is_not_preemptible_stays():
    plan = decided(running(1, cpu=4, preemptible=False), waits := make_session(2, cpu=4))
    assert plan.preemptions == ()
    assert plan.waits[waits.id].code is WaitCode.BUSY


def test_a_session_that_the_new_one_depends_on_stays():
    needed = running(1, cpu="4")
    comes = make_session(2, cpu="4", priority=90, after=[needed.id])
    assert decided(needed, comes).preemptions == ()
    beside = running(3, "a2", cpu="4", since=100.0)
    assert [p.session_id for p in decided(needed, beside, comes, agents=2).preemptions] == [beside.id]


def test_the_youngest_gives_way_because_it_loses_least():
    old, young = running(1, cpu=2, since=9000), running(2, cpu=2, since=60)
    plan = decided(old, young, comes := make_session(3, cpu=2, name="train"))
    (preemption,) = plan.preemptions
    assert (preemption.session_id, preemption.for_session_id) == (young.id, comes.id)
    assert preemption.message == "preempted by train, which has priority 50"
    assert plan.waits[comes.id].message == "starts when s2 of lower priority has ended"
    assert plan.waits[comes.id].waits_for == (young.id,)


def test_the_preempted_ones_owner_reads_no_other_users_name():
    plan = decided(running(1, cpu=4), replace(make_session(3, cpu=4, name="private-work", priority=60), owner="eve"))
    (preemption,) = plan.preemptions
    assert preemption.message == "preempted by another user's session, which has priority 60"


def test_the_lowest_priority_gives_way_first_even_if_it_loses_more():
    low, high = running(1, cpu=2, since=9000, priority=5), running(2, cpu=2, since=60, priority=20)
    assert [p.session_id for p in decided(low, high, make_session(3, cpu=2)).preemptions] == [low.id]


def test_sessions_that_are_not_in_the_way_are_spared():
    """The cheaper one lies on an agent that is too full of others."""
    stays = running(1, "a1", cpu=3, preemptible=False)
    cheap, dear = running(2, "a1", cpu=1, since=10), running(3, "a2", cpu=4, since=5000)
    plan = decided(stays, cheap, dear, make_session(4, cpu=3), agents=2)
    assert [preemption.session_id for preemption in plan.preemptions] == [dear.id]


def test_while_room_is_being_made_nobody_else_is_preempted_and_nobody_takes_it():
    leaving = replace(running(1, cpu=2), state=SessionState.TERMINATING)
    other = running(2, cpu=2)
    plan = decided(leaving, other, comes := make_session(3, cpu=2), late := make_session(4, cpu=2, priority=5))
    assert plan.preemptions == ()
    assert plan.placements == ()
    assert plan.waits[comes.id].estimated_start == NOW
    assert plan.waits[late.id].code is WaitCode.BUSY


def one_by_one(snapshot: Snapshot, comes: Session) -> list[str]:
    """The victims, found the slow way: as many as are enough from the cheapest on, less each that can be spared."""
    cheapest_first = sorted(snapshot.placed, key=lambda s: (s.spec.priority, s.slots.cpu, s.id))

    def fits(leaving: list[Session]) -> bool:
        left = without(snapshot, [session.id for session in leaving])
        return any(placement.session_id == comes.id for placement in schedule(left).placements)

    chosen: list[Session] = []
    for session in cheapest_first:
        if fits(chosen):
            break
        chosen.append(session)
    for session in reversed(chosen):
        rest = [other for other in chosen if other is not session]
        if fits(rest):
            chosen = rest
    return [session.id for session in chosen]


@dear
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2)), max_size=12), st.integers(1, 9))
def test_the_victims_are_those_that_sparing_one_by_one_finds(shapes, size):
    """Many are let go and spared at a time. Those of one priority have run equally long: the smallest lose least."""
    runs, free = [], dict.fromkeys(("a1", "a2", "a3", "a4"), 4)
    for number, (agent, cpu, priority) in enumerate(shapes, 10):
        if free[f"a{agent}"] >= cpu:
            free[f"a{agent}"] -= cpu
            runs.append(running(number, f"a{agent}", cpu=cpu, priority=priority, since=60))
    comes = make_session(1, cpu=2, cluster_size=size, cluster_mode="multi-node", priority=90)
    agents = tuple(make_agent(agent, cpus=4, swarm="manager") for agent in free)
    snapshot = Snapshot(agents, (*runs, comes), NOW, policy=PREEMPTING)
    plan = schedule(snapshot)
    found = sorted(preemption.session_id for preemption in plan.preemptions)
    slow = one_by_one(snapshot, comes)
    placed = any(placement.session_id == comes.id for placement in schedule(without(snapshot, slow)).placements)
    assert found == (sorted(slow) if placed else [])


@pytest.mark.parametrize("cpu", [4, 64, 256])
def test_the_trials_to_find_the_victims_grow_no_faster_than_those_that_run(monkeypatch, cpu):
    trials = 0
    fits = PlacementState.fits

    def counted(*arguments: Any) -> bool:
        nonlocal trials
        trials += 1
        return fits(*arguments)

    monkeypatch.setattr(PlacementState, "fits", counted)
    runs = [running(number, f"a{number % 4}", cpu=1, since=number) for number in range(2, 1026)]
    agents = tuple(make_agent(f"a{number}", cpus=256, mem_bytes=1 << 50) for number in range(4))
    plan = schedule(Snapshot(agents, (*runs, make_session(1, cpu=cpu)), NOW, policy=PREEMPTING))
    assert len(plan.preemptions) == cpu
    assert trials < 2 * len(runs)


@pytest.mark.parametrize(
    ("values", "leaves_in_s"),
    [
        ({}, 0),
        ({"signal": "USR1@60"}, 60),
        ({"signal": "USR1@60", "leaves_at": NOW + 20}, 20),
        ({"signal": "USR1@60", "time_limit": "1h", "since": 3590}, 10),
    ],
    ids=["at once", "after its signal", "when its signal's time is over", "by its time limit before that"],
)
def test_who_preempts_starts_when_those_that_leave_are_gone(values, leaves_in_s):
    leaves_at = values.pop("leaves_at", None)
    leaving = replace(running(1, cpu=4, **values), leaves_at=leaves_at)
    comes = make_session(2, cpu=4, priority=90)
    plan = decided(leaving, comes)
    assert [preemption.session_id for preemption in plan.preemptions] == [leaving.id]
    assert plan.waits[comes.id].estimated_start == NOW + leaves_in_s
