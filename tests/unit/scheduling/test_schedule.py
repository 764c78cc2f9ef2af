"""The rules that every plan keeps, for any queue and any agents."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.plan import Plan
from muster.core.model.policy import GroupPolicy, SchedulingPolicy, by_arrival
from muster.core.model.session import Kernel, Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.committed import running
from muster.core.scheduling.schedule import schedule
from muster.store.sessions.waits import wait_from, wait_row
from tests.strategies.agents import make_agent
from tests.strategies.capacity import Ledger, some_arrangement_exists
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.snapshots import snapshots
from tests.strategies.values import NOW


def committed(snapshot: Snapshot, plan: Plan) -> dict[str, Session]:
    """Return by id the sessions that the plan places, as they are after its commit."""
    by_id = {session.id: session for session in snapshot.sessions}
    return {
        placement.session_id: running(by_id[placement.session_id], placement, snapshot.now)
        for placement in plan.placements
    }


def kernels_in(sessions: Sequence[Session]) -> list[Kernel]:
    return [kernel for session in sessions for kernel in session.kernels]


def all_back(known: Sequence[Agent]) -> tuple[Agent, ...]:
    return tuple(replace(agent, state=AgentState.ALIVE, drain_reason=None) for agent in known)


def group_of(snapshot: Snapshot, session: Session, *, usable: bool = False) -> list[Agent]:
    return [
        agent
        for agent in snapshot.agents
        if agent.resource_group == session.spec.resource_group
        and (not usable or (agent.takes_sessions and agent.id not in snapshot.slow))
    ]


def in_order(pending: Sequence[Session]) -> list[Session]:
    """Order by priority, then first in, first out."""
    return sorted(pending, key=lambda session: (-session.spec.priority, session.submitted_at, session.id))


def strictly(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with a policy without backfill and preemption."""
    return replace(snapshot, policy=SchedulingPolicy(GroupPolicy(backfill=False)))


def joined(known: Sequence[Agent]) -> list[Agent]:
    return [agent for agent in known if agent.on_overlay]


def may_spread(session: Session, snapshot: Snapshot) -> bool:
    return session.spec.cluster_mode == "multi-node" and snapshot.overlay_keeper is not None


def fits_one(session: Session, known: Sequence[Agent], used: Sequence[Kernel]) -> bool:
    def on(agent: Agent) -> bool:
        there = [kernel for kernel in used if kernel.allocation and kernel.allocation.agent_id == agent.id]
        return some_arrangement_exists(session.kernels, [agent], there)

    return any(on(agent) for agent in known)


@given(snapshots())
def test_a_plan_never_uses_more_than_an_agent_has(snapshot):
    ledger = Ledger.of(snapshot.agents)
    plan = schedule(snapshot)
    for kernel in kernels_in([*snapshot.placed, *committed(snapshot, plan).values()]):
        ledger.charge(kernel)
    assert ledger.overdrawn == []


@given(snapshots(), st.sets(st.integers(0, 2), min_size=1, max_size=2))
def test_no_kernel_starts_on_a_gpu_in_quarantine(snapshot, sick):
    def ailing(agent: Agent) -> Agent:
        gpus = (replace(gpu, quarantine="Xid 79") if gpu.index in sick else gpu for gpu in agent.gpus)
        return replace(agent, gpus=tuple(gpus))

    ill = replace(snapshot, agents=tuple(map(ailing, snapshot.agents)))
    quarantined = {(agent.id, gpu.uuid) for agent in ill.agents for gpu in agent.gpus if gpu.quarantine}
    used = {
        (kernel.allocation.agent_id, share.uuid)
        for kernel in kernels_in([*committed(ill, schedule(ill)).values()])
        if kernel.allocation
        for share in kernel.allocation.gpus
    }
    assert not used & quarantined


@given(snapshots())
def test_a_gang_is_placed_whole_on_live_agents_of_its_group(snapshot):
    plan = schedule(snapshot)
    placed = committed(snapshot, plan)
    for placement in plan.placements:
        session = placed[placement.session_id]
        assert set(placement.allocations) == {kernel.id for kernel in session.kernels}
        assert set(session.agents) <= {agent.id for agent in group_of(snapshot, session, usable=True)}
        assert placement.mode == ("single-node" if len(session.agents) == 1 else "multi-node")
        if len(session.agents) > 1:
            assert may_spread(session, snapshot)
            assert set(session.agents) <= {agent.id for agent in joined(snapshot.agents)}


@given(snapshots())
def test_a_gang_lies_on_several_agents_only_where_no_single_one_could_hold_it_beside_the_others(snapshot):
    plan = schedule(snapshot)
    started = committed(snapshot, plan).values()
    for session in started:
        if len(session.agents) > 1:
            others = kernels_in([*snapshot.placed, *(other for other in started if other.id != session.id)])
            assert not fits_one(session, group_of(snapshot, session, usable=True), others)


@given(snapshots(), st.randoms(use_true_random=False))
def test_the_same_input_gives_the_same_plan_in_whatever_order_it_is_read(snapshot, random):
    shuffled_sessions, shuffled_agents = list(snapshot.sessions), list(snapshot.agents)
    random.shuffle(shuffled_sessions)
    random.shuffle(shuffled_agents)
    shuffled = replace(snapshot, agents=tuple(shuffled_agents), sessions=tuple(shuffled_sessions))
    assert schedule(shuffled) == schedule(snapshot)


@given(snapshots())
def test_sessions_placed_together_lie_where_they_would_one_by_one(snapshot):
    def one_by_one(sessions, view):
        yield from by_arrival(sessions, view)

    singly = replace(snapshot, policy=SchedulingPolicy(GroupPolicy(order=one_by_one)))
    together = replace(snapshot, policy=SchedulingPolicy(GroupPolicy(order=by_arrival)))
    assert schedule(together) == schedule(singly)


@given(snapshots())
def test_every_pending_session_is_placed_or_has_a_wait(snapshot):
    plan = schedule(snapshot)
    placed = [placement.session_id for placement in plan.placements]
    assert sorted([*placed, *plan.waits]) == sorted(session.id for session in snapshot.pending)
    assert all(wait.message and "\n" not in wait.message for wait in plan.waits.values())


def waits_for_room(session: Session, snapshot: Snapshot) -> bool:
    """Return whether the session would start if it were alone: not one that waits for agents to be back."""
    alone = replace(snapshot, sessions=(replace(session, retry_at=None),))
    return bool(schedule(alone).placements)


@given(snapshots().map(strictly))
def test_without_backfill_no_session_overtakes_one_that_waits_for_room(snapshot):
    plan = schedule(snapshot)
    started = {placement.session_id for placement in plan.placements}
    passed: set[str] = set()
    for session in in_order(snapshot.pending):
        group = session.spec.resource_group
        if session.id in started:
            assert group not in passed
        elif plan.waits[session.id].code is WaitCode.BUSY and waits_for_room(session, snapshot):
            assert group not in passed
            passed.add(group)


@given(snapshots())
def test_a_session_waits_behind_one_that_is_ahead_of_it_and_has_no_room(snapshot):
    plan = schedule(snapshot)
    by_id = {session.id: session for session in snapshot.pending}
    order = [session.id for session in in_order(snapshot.pending)]
    for session in snapshot.pending:
        wait = plan.waits.get(session.id)
        if wait is not None and wait.code is WaitCode.BEHIND:
            (ahead,) = wait.waits_for
            assert by_id[ahead].spec.resource_group == session.spec.resource_group
            assert order.index(ahead) < order.index(session.id)
            assert plan.waits[ahead].code in {WaitCode.BUSY, WaitCode.PREEMPTING}


@given(snapshots())
def test_positions_count_those_that_wait_in_each_group(snapshot):
    plan = schedule(snapshot)
    counts: dict[str, int] = {}
    for session in in_order(snapshot.pending):
        if session.id in plan.waits:
            counts[session.spec.resource_group] = counts.get(session.spec.resource_group, 0) + 1
            assert plan.waits[session.id].position == counts[session.spec.resource_group]


@given(snapshots(), st.sampled_from(({"cpu": 10_000}, {"mem": 1 << 50}, {"gpu": 64}, {"fgpu": 10_000})))
def test_a_session_that_never_fits_changes_nothing_for_others(snapshot, too_much):
    giant = make_session(99, priority=100, **too_much)
    giant = replace(giant, submitted_at=0.0)
    with_giant = replace(snapshot, sessions=(giant, *snapshot.sessions))
    plan = schedule(with_giant)
    assert plan.placements == schedule(snapshot).placements
    assert plan.waits[giant.id].code in {WaitCode.NEVER_FITS, WaitCode.NO_AGENTS}


@given(snapshots())
def test_a_busy_session_starts_when_all_others_are_gone_and_all_agents_are_back(snapshot):
    plan = schedule(snapshot)
    for session in snapshot.pending:
        if session.id in plan.waits and plan.waits[session.id].code is WaitCode.BUSY:
            alone = Snapshot(all_back(snapshot.agents), (session,), snapshot.now)
            if alone.overlay_keeper or fits_one(session, group_of(alone, session), ()):
                assert [p.session_id for p in schedule(alone).placements] == [session.id]


@given(snapshots(never_spread=True))
def test_a_busy_session_has_no_arrangement_in_the_free_capacity(snapshot):
    plan = schedule(snapshot)
    started = committed(snapshot, plan)
    used = kernels_in(snapshot.placed)
    for session in in_order(snapshot.pending):
        if session.id in started:
            used += started[session.id].kernels
        elif plan.waits[session.id].code is WaitCode.BUSY:
            assert not fits_one(session, group_of(snapshot, session, usable=True), used)


@given(snapshots(never_spread=True))
def test_a_session_that_never_fits_has_no_arrangement_on_empty_agents(snapshot):
    plan = schedule(snapshot)
    for session in snapshot.pending:
        if session.id in plan.waits and plan.waits[session.id].code is WaitCode.NEVER_FITS:
            assert not fits_one(session, group_of(snapshot, session), ())


@given(snapshots())
def test_a_session_that_never_fits_does_not_start_when_all_others_are_gone(snapshot):
    plan = schedule(snapshot)
    for session in snapshot.pending:
        if session.id in plan.waits and plan.waits[session.id].code is WaitCode.NEVER_FITS:
            alone = Snapshot(all_back(snapshot.agents), (replace(session, retry_at=None),), snapshot.now)
            assert schedule(alone).placements == ()


@given(snapshots())
def test_gpu_shares_are_one_device_or_wholes_and_one_remainder(snapshot):
    plan = schedule(snapshot)
    known = {agent.id: agent for agent in snapshot.agents}
    for kernel in kernels_in(list(committed(snapshot, plan).values())):
        shares = kernel.allocation.gpus
        capacity = {gpu.uuid: max(gpu.units, 1) * 1000 for gpu in known[kernel.allocation.agent_id].gpus}
        assert len({share.uuid for share in shares}) == len(shares)
        assert all(share.amount == capacity[share.uuid] for share in shares if share.whole)
        if kernel.slots.gpu:
            assert [share.whole for share in shares] == [True] * kernel.slots.gpu
        elif kernel.slots.fgpu:
            assert sum(share.amount for share in shares) == kernel.slots.fgpu
            one = next(iter(capacity.values()))
            if kernel.slots.fgpu <= one:
                assert len(shares) == 1
            else:
                assert sum(not share.whole for share in shares) == (1 if kernel.slots.fgpu % one else 0)
        else:
            assert shares == ()


@given(snapshots())
def test_a_session_that_never_fits_lacks_what_the_nearest_agent_lacks(snapshot):
    plan = schedule(snapshot)
    known = {agent.id: agent for agent in snapshot.agents}
    for session in snapshot.pending:
        wait = plan.waits.get(session.id)
        if wait and wait.nearest and wait.code is WaitCode.NEVER_FITS and session.spec.cluster_mode == "single-node":
            capacity = known[wait.nearest.agent_id].capacity
            for name in ("cpu", "mem", "gpu"):
                lacks = max(0, getattr(session.slots, name) - getattr(capacity, name))
                assert wait.nearest.missing.get(name, 0) == lacks


# Examples


def codes(plan: Plan) -> dict[str, WaitCode]:
    return {session_id: wait.code for session_id, wait in plan.waits.items()}


def placed_names(snapshot: Snapshot) -> list[str]:
    names = {session.id: session.name for session in snapshot.sessions}
    return [names[placement.session_id] for placement in schedule(snapshot).placements]


def test_higher_priority_goes_first_then_first_in_first_out():
    queue = [make_session(1), make_session(2, priority=90), make_session(3), make_session(4, priority=10)]
    assert placed_names(Snapshot((make_agent(cpus=2),), tuple(queue), NOW)) == ["s2", "s1"]


def test_without_backfill_a_small_session_waits_behind_a_large_one_that_is_busy():
    runs = placed_on(make_session(1, cpu=3), "a1")
    sessions = (runs, large := make_session(2, cpu=2), small := make_session(3))
    plan = schedule(strictly(Snapshot((make_agent(cpus=4),), sessions, NOW)))
    assert codes(plan) == {large.id: WaitCode.BUSY, small.id: WaitCode.BEHIND}
    assert plan.waits[small.id].message == "s2 is ahead of it in the queue"


def test_groups_have_queues_of_their_own():
    known = (make_agent("a1", cpus=1), make_agent("a2", cpus=1, resource_group="gpu"))
    runs = placed_on(make_session(1), "a1")
    snapshot = Snapshot(known, (runs, make_session(2), make_session(3, resource_group="gpu")), NOW)
    assert placed_names(snapshot) == ["s3"]


def test_a_session_that_waits_for_a_retry_holds_back_nobody():
    waits = make_session(1, retry_at=NOW + 5, reason="no such image")
    plan = schedule(Snapshot((make_agent(),), (waits, make_session(2)), NOW))
    assert codes(plan) == {waits.id: WaitCode.RETRY}
    assert "no such image" in plan.waits[waits.id].message
    assert len(plan.placements) == 1


def test_a_retry_whose_time_has_come_is_placed():
    assert placed_names(Snapshot((make_agent(),), (make_session(1, retry_at=NOW),), NOW)) == ["s1"]


def test_a_group_without_agents_is_named():
    session = make_session(1, resource_group="tpu")
    wait = schedule(Snapshot((make_agent(),), (session,), NOW)).waits[session.id]
    assert wait.code is WaitCode.NO_AGENTS
    assert "tpu" in wait.message


def test_a_session_that_only_a_lost_agent_could_hold_is_busy_not_impossible():
    lost = replace(make_agent("a2", cpus=64), state=AgentState.LOST)
    session = make_session(1, cpu=32)
    wait = schedule(Snapshot((make_agent(cpus=4), lost), (session,), NOW)).waits[session.id]
    assert wait.code is WaitCode.BUSY
    assert wait.filtered == {"lost": 1}


@pytest.mark.parametrize(
    ("state", "requested"), [("SCHEDULED", 1), ("PREPARING", 1), ("RUNNING", 1), ("TERMINATING", 1)]
)
def test_a_session_keeps_its_room_until_it_has_ended(state, requested):
    holder = placed_on(make_session(1, cpu=4), "a1", state=state)
    assert placed_names(Snapshot((make_agent(cpus=4),), (holder, make_session(2, cpu=requested)), NOW)) == []


@pytest.mark.parametrize(
    ("changes", "slow", "obstacle"),
    [
        ({"state": AgentState.UNREACHABLE}, (), "unreachable"),
        ({"state": AgentState.LOST}, (), "lost"),
        ({"drain_reason": "disks"}, (), "drained"),
        ({}, ("a2",), "slow"),
    ],
)
def test_an_agent_that_takes_no_sessions_is_counted_by_its_cause(changes, slow, obstacle):
    other = replace(make_agent("a2", cpus=64), **changes)
    session = make_session(1, cpu=32)
    wait = schedule(Snapshot((make_agent(cpus=4), other), (session,), NOW, frozenset(slow))).waits[session.id]
    assert (wait.code, wait.filtered) == (WaitCode.BUSY, {obstacle: 1})
    assert f"(agents left out: 1 {obstacle})" in wait.message


def test_a_wait_can_be_stored_as_json():
    known = (make_agent(), replace(make_agent("a2"), drain_reason="disks"))
    session = make_session(1, cpu=8)
    wait = schedule(Snapshot(known, (session,), NOW, frozenset({"a1"}))).waits[session.id]
    assert wait_from(json.loads(json.dumps(wait_row(wait)))).filtered == {"drained": 1, "slow": 1}


def test_a_session_that_waits_for_an_agent_names_none_that_is_behind_it():
    away = replace(make_agent("a2", cpus=64), state=AgentState.UNREACHABLE)
    runs = placed_on(make_session(1, cpu=3), "a1")
    sessions = (runs, far := make_session(2, cpu=32), head := make_session(3, cpu=4), alike := make_session(4, cpu=32))
    plan = schedule(strictly(Snapshot((make_agent(cpus=4), away), sessions, NOW)))
    assert codes(plan) == {far.id: WaitCode.BUSY, head.id: WaitCode.BUSY, alike.id: WaitCode.BEHIND}
