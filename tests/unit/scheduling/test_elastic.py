"""Elastic gangs: they start with what there is, at least the least and at most the most, and delay nobody."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from muster.core.lifecycle.applied import applied
from muster.core.lifecycle.transitions import back_to_the_queue, place
from muster.core.model.plan import Placement, Plan
from muster.core.model.policy import GroupPolicy, Limit, Limits, SchedulingPolicy
from muster.core.model.session import AllocatedSlots, Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.committed import running
from muster.core.scheduling.future import end_of
from muster.core.scheduling.memory.pass_memory import PassMemory
from muster.core.scheduling.placement import PlacementState, gang_of_size
from muster.core.scheduling.schedule import schedule
from muster.core.whatif.hypothesis import changed
from tests.strategies.agents import joined_agent, make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.snapshots import snapshots
from tests.strategies.values import NOW

SPREAD = {"cluster_mode": "multi-node", "cpu": 1, "mem": "64M", "shm": 0}


def gang(number: int = 1, size: object = "4-8", **values: Any) -> Session:
    return make_session(number, **{"cluster_size": size, **SPREAD, **values})


def cores(*counts: int) -> tuple[Any, ...]:
    return tuple(joined_agent(f"a{number}", cpus=count) for number, count in enumerate(counts, 1))


def given_to(snapshot: Snapshot) -> dict[str, int]:
    """Return by name how many kernels the sessions get that start."""
    names = {session.id: session.name for session in snapshot.sessions}
    return {names[p.session_id]: len(p.allocations) for p in schedule(snapshot).placements}


def rigid(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot in which waiting elastic sessions ask for their least alone."""

    def least(session: Session) -> Session:
        waits = session.state is SessionState.PENDING and session.spec.is_elastic
        return changed(session, {"cluster_size": session.spec.sizes[0]}) if waits else session

    return replace(snapshot, sessions=tuple(map(least, snapshot.sessions)))


def by_session(plan: Plan) -> dict[str, Placement]:
    return {placement.session_id: placement for placement in plan.placements}


@pytest.mark.parametrize(("free", "count"), [((3, 1), 4), ((4, 2), 6), ((9, 9), 8)])
def test_it_starts_with_as_many_as_fit(free, count):
    assert given_to(Snapshot(cores(*free), (gang(),), NOW)) == {"s1": count}


def test_it_waits_for_its_least_and_says_so():
    plan = schedule(Snapshot(cores(2, 1), (gang(),), NOW))
    wait = plan.waits[gang().id]
    assert (wait.code, wait.nearest and wait.nearest.missing) == (WaitCode.NEVER_FITS, {"cpu": 1000})


def test_on_one_agent_it_goes_where_most_of_it_fits():
    agents = (make_agent("a1", cpus=2), make_agent("a2", cpus=3))
    session = gang(size="2-8", cluster_mode="single-node")
    (placement,) = schedule(Snapshot(agents, (session,), NOW)).placements
    assert {given.agent_id for given in placement.allocations.values()} == {"a2"}
    assert len(placement.allocations) == 3


def test_without_an_overlay_network_it_grows_on_one_agent_only():
    agents = (make_agent("a1", cpus=4), make_agent("a2", cpus=3))
    assert given_to(Snapshot(agents, (gang(size="2-8"),), NOW)) == {"s1": 4}


def test_one_kernel_at_least_may_become_several_over_agents():
    assert given_to(Snapshot(cores(2, 2), (gang(size="1-4"),), NOW)) == {"s1": 4}


def test_roles_keep_their_replicas_and_sub_grows():
    session = gang(size="3-9", roles=["ps:2,cpu=2"])
    (placement,) = schedule(Snapshot(cores(4, 4), (session,), NOW)).placements
    runs = running(session, placement, NOW)
    assert [kernel.name for kernel in runs.kernels] == ["main1", "ps1", "ps2", "sub1", "sub2", "sub3"]
    assert [kernel.name for kernel in runs.spare] == ["sub4", "sub5", "sub6"]


def test_nobody_who_can_start_is_kept_waiting_by_what_another_may_have_more():
    sessions = (gang(1), gang(2, 3), gang(3, "1-2"))
    assert given_to(Snapshot(cores(4, 5), sessions, NOW)) == {"s1": 5, "s2": 3, "s3": 1}


def test_nothing_that_is_reserved_for_the_head_is_given():
    runs = placed_on(gang(1, 4, time_limit="1h"), "a1")
    head, endless = gang(2, 6), gang(3, "1-8")
    hasty = gang(3, "1-8", time_limit="30m")
    agents = cores(4, 4)
    assert given_to(Snapshot(agents, (runs, head, endless), NOW)) == {"s3": 2}
    assert given_to(Snapshot(agents, (runs, head, hasty), NOW)) == {"s3": 4}


def test_limits_bound_what_is_given_and_count_it():
    limits = Limits(users={"ada": Limit(running={"cpu": 7000})})
    sessions = (gang(1, "2-8"), gang(2, 3), gang(3, "1-8"))
    snapshot = Snapshot(cores(16, 16), sessions, NOW, policy=SchedulingPolicy(limits=limits))
    assert given_to(snapshot) == {"s1": 3, "s2": 3, "s3": 1}
    least = Limits(users={"ada": Limit(running={"kernels": 2})})
    assert given_to(replace(snapshot, policy=SchedulingPolicy(limits=least))) == {"s1": 2}


def test_what_was_given_counts_against_limits_while_it_runs():
    limits = SchedulingPolicy(limits=Limits(users={"ada": Limit(running={"kernels": 7})}))
    runs = placed_on(gang(1, "2-8").of_size(6), "a1")
    plan = schedule(Snapshot(cores(16), (runs, gang(2, 2)), NOW, policy=limits))
    (wait,) = (plan.waits[key] for key in plan.waits)
    assert (wait.code, wait.limit and wait.limit.used) == (WaitCode.LIMIT, 6)


def test_a_later_start_may_be_of_another_size():
    session = gang()
    snapshot = Snapshot(cores(6), (session,), NOW)
    placed = applied(snapshot, place(schedule(snapshot), snapshot))
    (first,) = placed.sessions
    assert (len(first.kernels), len(first.spare), first.given) == (6, 2, 6)
    assert all(kernel.allocation for kernel in first.kernels)
    back = applied(placed, [back_to_the_queue(first, "agent a1 does not answer any more", NOW)])
    (waiting,) = back.sessions
    assert (len(waiting.kernels), len(waiting.spare), waiting.given) == (4, 4, None)
    assert not any(kernel.allocation for kernel in (*waiting.kernels, *waiting.spare))
    assert given_to(replace(back, agents=cores(9))) == {"s1": 8}


@given(snapshots())
def test_elastic_sessions_get_no_fewer_than_the_least_and_no_more_than_the_most(snapshot):
    sessions = {session.id: session for session in snapshot.sessions}
    for placement in schedule(snapshot).placements:
        session = sessions[placement.session_id]
        least, most = session.spec.sizes
        assert least <= len(placement.allocations) <= most
        ids = [kernel.id for kernel in session.possible_kernels]
        assert [*placement.allocations] == ids[: len(placement.allocations)]


@given(snapshots())
def test_the_same_sessions_start_as_if_all_asked_for_their_least(snapshot):
    plan, least = schedule(snapshot), schedule(rigid(snapshot))
    assert [p.session_id for p in plan.placements] == [p.session_id for p in least.placements]
    assert plan.preemptions == least.preemptions
    for placement in least.placements:
        session = next(s for s in snapshot.sessions if s.id == placement.session_id)
        if not session.spec.is_elastic:
            assert by_session(plan)[session.id] == placement


@given(snapshots())
def test_the_head_starts_no_later_than_if_all_asked_for_their_least(snapshot):
    plan, least = schedule(snapshot), schedule(rigid(snapshot))
    for session_id in least.waits:
        expected = least.waits[session_id]
        if not expected.passes or expected.estimated_start is None:
            continue
        by_then = [
            running(session, by_session(plan)[session.id], NOW) if session.id in by_session(plan) else session
            for session in snapshot.sessions
            if session.id == session_id or session.state is not SessionState.PENDING or session.id in by_session(plan)
        ]
        gone = {preemption.session_id for preemption in plan.preemptions}
        after = [s for s in by_then if s.id == session_id or end_of(s, NOW) > expected.estimated_start]
        world = replace(
            snapshot, sessions=tuple(s for s in after if s.id not in gone), now=expected.estimated_start, policy=ALONE
        )
        head = next(s for s in world.sessions if s.id == session_id)
        world = replace(world, sessions=tuple(replace(s, retry_at=None) if s is head else s for s in world.sessions))
        assert session_id in by_session(schedule(world))


ALONE = SchedulingPolicy(GroupPolicy())


@given(snapshots(max_sessions=4))
def test_no_further_kernel_would_have_fitted(snapshot):
    """Each elastic session that starts has as many as fit beside all others, unless room is kept for the head."""
    plan = schedule(snapshot)
    if any(plan.waits[key].passes for key in plan.waits):
        return
    after = {p.session_id: p for p in plan.placements}
    for session in snapshot.pending:
        size = len(after[session.id].allocations) if session.id in after else 0
        if not size or size == session.spec.sizes[1]:
            continue
        group = [agent for agent in snapshot.agents if agent.resource_group == session.spec.resource_group]
        usable = [a for a in group if a.takes_sessions and a.id not in snapshot.slow]
        kernels: dict[str, list[AllocatedSlots]] = {agent.id: [] for agent in usable}
        for other in snapshot.sessions:
            lies = running(other, after[other.id], NOW) if other.id in after else other
            for kernel in lies.kernels if other.id != session.id else ():
                if kernel.allocation and kernel.allocation.agent_id in kernels:
                    kernels[kernel.allocation.agent_id].append(AllocatedSlots(kernel.slots, kernel.allocation))
        state = PlacementState.of(usable, kernels, snapshot.policy.of(session.spec.resource_group).placement)
        assert not state.fits(gang_of_size(session, size + 1, overlay=snapshot.overlay_keeper is not None))


@given(snapshots())
def test_a_pass_with_memory_gives_the_same(snapshot):
    memory = PassMemory()
    schedule(replace(snapshot, sessions=snapshot.placed), memory)
    assert schedule(snapshot, memory).placements == schedule(snapshot).placements


def test_a_gang_without_a_bound_in_time_leaves_room_for_a_head_whose_start_is_unknown():
    runs = placed_on(gang(1, 4), "a1")
    head = replace(gang(2, 6), wait=schedule(Snapshot(cores(4, 4), (runs, gang(2, 6)), NOW)).waits[gang(2, 6).id])
    policy = SchedulingPolicy(GroupPolicy(reserve_after_passes=1))
    plan = schedule(Snapshot(cores(4, 4), (runs, head, gang(3, "1-8")), NOW, policy=policy))
    assert all(len(p.allocations) == 1 for p in plan.placements)
    assert plan.waits[head.id].estimated_start in {None, math.inf}
