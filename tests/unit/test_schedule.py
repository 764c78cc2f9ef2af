"""The rules that every plan keeps, whatever the queue and the agents look like."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.core.agent import Agent, AgentState
from muster.core.gpu_shares import packing
from muster.core.placement import Policy
from muster.core.plan import Plan, WaitCode
from muster.core.room import Room
from muster.core.schedule import queue_order, schedule
from muster.core.session import Kernel, Session
from muster.core.slots import SLOT_NAMES, Slots
from muster.core.snapshot import Snapshot
from tests.strategies import (
    NOW,
    Ledger,
    M,
    agents,
    gang_specs,
    make_agent,
    make_session,
    placed_on,
    snapshots,
    some_arrangement_exists,
)

ONE_AGENT_EACH = Policy(spans_agents=False)
SPREADING = Policy(spans_agents=True)
policies = st.sampled_from((ONE_AGENT_EACH, SPREADING))


def committed(snapshot: Snapshot, plan: Plan) -> dict[str, Session]:
    """By id, the sessions that the plan places, as they are once it is committed."""
    by_id = {session.id: session for session in snapshot.sessions}
    return {
        placement.session_id: replace(
            by_id[placement.session_id],
            kernels=tuple(
                replace(kernel, allocation=placement.allocations.get(kernel.id))
                for kernel in by_id[placement.session_id].kernels
            ),
        )
        for placement in plan.placements
    }


def kernels_in(sessions: Sequence[Session]) -> list[Kernel]:
    return [kernel for session in sessions for kernel in session.kernels]


def all_alive(known: Sequence[Agent]) -> tuple[Agent, ...]:
    return tuple(replace(agent, state=AgentState.ALIVE) for agent in known)


def group_of(snapshot: Snapshot, session: Session, *, alive: bool = False) -> list[Agent]:
    return [
        agent
        for agent in snapshot.agents
        if agent.resource_group == session.spec.resource_group and (not alive or agent.state is AgentState.ALIVE)
    ]


def may_spread(session: Session, policy: Policy) -> bool:
    return policy.spans_agents and session.spec.cluster_mode == "multi-node"


def fits_somehow(session: Session, known: Sequence[Agent], used: Sequence[Kernel], policy: Policy) -> bool:
    def on(some: Sequence[Agent]) -> bool:
        names = {agent.id for agent in some}
        there = [kernel for kernel in used if kernel.allocation and kernel.allocation.agent_id in names]
        return some_arrangement_exists(session.kernels, some, there)

    return any(on([agent]) for agent in known) or (may_spread(session, policy) and on(known))


@given(snapshots(), policies)
def test_a_plan_never_uses_more_than_an_agent_has(snapshot, policy):
    ledger = Ledger.of(snapshot.agents)
    plan = schedule(snapshot, policy)
    for kernel in kernels_in([*snapshot.placed, *committed(snapshot, plan).values()]):
        ledger.charge(kernel)
    assert ledger.overdrawn == []


@given(snapshots(), policies)
def test_a_gang_is_placed_whole_on_live_agents_of_its_group(snapshot, policy):
    plan = schedule(snapshot, policy)
    placed = committed(snapshot, plan)
    for placement in plan.placements:
        session = placed[placement.session_id]
        assert set(placement.allocations) == {kernel.id for kernel in session.kernels}
        assert set(session.agents) <= {agent.id for agent in group_of(snapshot, session, alive=True)}
        assert placement.mode == ("single-node" if len(session.agents) == 1 else "multi-node")
        if not may_spread(session, policy):
            assert len(session.agents) == 1


@given(snapshots())
def test_a_gang_that_fits_one_agent_goes_there(snapshot):
    plan = schedule(snapshot, SPREADING)
    used = kernels_in(snapshot.placed)
    for session in committed(snapshot, plan).values():
        if len(session.agents) > 1:
            assert not fits_somehow(session, group_of(snapshot, session, alive=True), used, ONE_AGENT_EACH)
        used += session.kernels


@given(snapshots(), policies, st.randoms(use_true_random=False))
def test_the_same_input_gives_the_same_plan_in_whatever_order_it_is_read(snapshot, policy, random):
    shuffled_sessions, shuffled_agents = list(snapshot.sessions), list(snapshot.agents)
    random.shuffle(shuffled_sessions)
    random.shuffle(shuffled_agents)
    shuffled = Snapshot(tuple(shuffled_agents), tuple(shuffled_sessions), snapshot.now)
    assert schedule(shuffled, policy) == schedule(snapshot, policy)


@given(snapshots(), policies)
def test_every_pending_session_is_placed_or_told_why_not(snapshot, policy):
    plan = schedule(snapshot, policy)
    placed = [placement.session_id for placement in plan.placements]
    assert sorted([*placed, *plan.waits]) == sorted(session.id for session in snapshot.pending)
    assert all(wait.message and "\n" not in wait.message for wait in plan.waits.values())


@given(snapshots(), policies)
def test_no_session_overtakes_a_busy_one_of_its_group_and_of_no_lower_priority(snapshot, policy):
    plan = schedule(snapshot, policy)
    for busy in (s for s in snapshot.pending if s.id in plan.waits and plan.waits[s.id].code is WaitCode.BUSY):
        for other in committed(snapshot, plan).values():
            later = (other.submitted_at, other.id) > (busy.submitted_at, busy.id)
            if other.spec.resource_group == busy.spec.resource_group and later:
                assert other.spec.priority > busy.spec.priority


@given(snapshots(), policies)
def test_only_a_busy_session_holds_others_back(snapshot, policy):
    plan = schedule(snapshot, policy)
    busy_groups = set()
    for session in queue_order(snapshot.pending):
        group = session.spec.resource_group
        wait = plan.waits.get(session.id)
        if wait is None or wait.code is WaitCode.BUSY:
            assert group not in busy_groups
        if wait is not None and wait.code is WaitCode.BEHIND:
            assert group in busy_groups
        if wait is not None and wait.code is WaitCode.BUSY:
            busy_groups.add(group)


@given(snapshots(), policies)
def test_positions_count_those_that_wait_in_each_group(snapshot, policy):
    plan = schedule(snapshot, policy)
    counts: dict[str, int] = {}
    for session in queue_order(snapshot.pending):
        if session.id in plan.waits:
            counts[session.spec.resource_group] = counts.get(session.spec.resource_group, 0) + 1
            assert plan.waits[session.id].position == counts[session.spec.resource_group]


@given(snapshots(), policies, st.sampled_from(({"cpu": 10_000}, {"mem": 1 << 50}, {"gpu": 64}, {"fgpu": 10_000})))
def test_what_never_fits_changes_nothing_for_the_others(snapshot, policy, too_much):
    giant = make_session(99, priority=100, **too_much)
    giant = replace(giant, submitted_at=0.0)
    with_giant = replace(snapshot, sessions=(giant, *snapshot.sessions))
    plan = schedule(with_giant, policy)
    assert plan.placements == schedule(snapshot, policy).placements
    assert plan.waits[giant.id].code in {WaitCode.NEVER_FITS, WaitCode.NO_AGENTS}


@given(snapshots(), policies)
def test_what_is_busy_starts_when_all_others_are_gone_and_all_agents_are_back(snapshot, policy):
    plan = schedule(snapshot, policy)
    for session in snapshot.pending:
        if session.id in plan.waits and plan.waits[session.id].code is WaitCode.BUSY:
            alone = Snapshot(all_alive(snapshot.agents), (session,), snapshot.now)
            assert [p.session_id for p in schedule(alone, policy).placements] == [session.id]


@given(snapshots(never_spread=True))
def test_what_is_busy_has_no_arrangement_in_the_room_that_is_left(snapshot):
    plan = schedule(snapshot, ONE_AGENT_EACH)
    started = committed(snapshot, plan)
    used = kernels_in(snapshot.placed)
    for session in queue_order(snapshot.pending):
        if session.id in started:
            used += started[session.id].kernels
        elif plan.waits[session.id].code is WaitCode.BUSY:
            assert not fits_somehow(session, group_of(snapshot, session, alive=True), used, ONE_AGENT_EACH)


@given(snapshots(never_spread=True))
def test_what_never_fits_has_no_arrangement_on_any_empty_agent(snapshot):
    plan = schedule(snapshot, ONE_AGENT_EACH)
    for session in snapshot.pending:
        if session.id in plan.waits and plan.waits[session.id].code is WaitCode.NEVER_FITS:
            assert not fits_somehow(session, group_of(snapshot, session), (), ONE_AGENT_EACH)


@given(snapshots(), policies)
def test_what_never_fits_does_not_start_when_all_others_are_gone(snapshot, policy):
    plan = schedule(snapshot, policy)
    for session in snapshot.pending:
        if session.id in plan.waits and plan.waits[session.id].code is WaitCode.NEVER_FITS:
            alone = Snapshot(all_alive(snapshot.agents), (replace(session, retry_at=None),), snapshot.now)
            assert schedule(alone, policy).placements == ()


@given(snapshots(), policies)
def test_gpu_shares_are_one_device_or_wholes_and_one_remainder(snapshot, policy):
    plan = schedule(snapshot, policy)
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


@given(snapshots(), policies)
def test_the_missing_amounts_of_the_nearest_miss_are_what_the_agent_lacks(snapshot, policy):
    plan = schedule(snapshot, policy)
    known = {agent.id: agent for agent in snapshot.agents}
    for session in snapshot.pending:
        wait = plan.waits.get(session.id)
        if wait and wait.nearest and wait.code is WaitCode.NEVER_FITS:
            wanted = session.main.slots if may_spread(session, policy) else session.slots
            capacity = known[wait.nearest.agent_id].capacity
            lacks = {n: getattr(wanted, n) - getattr(capacity, n) for n in SLOT_NAMES}
            assert dict(wait.nearest.missing) == {n: amount for n, amount in lacks.items() if amount > 0}
            assert set(wait.nearest.missing) <= set(wait.exhausted)


@given(agents(min_size=1), gang_specs())
def test_a_room_gives_back_what_was_taken(known, spec):
    kernel = make_session(1, **spec.model_dump(exclude={"name", "image"}, mode="json")).main
    for agent in known:
        empty = Room.of(agent)
        shares = empty.shares_for(kernel.slots)
        if shares is None:
            continue
        left = empty.take(kernel.slots, shares)
        assert left.cpu + kernel.slots.cpu == empty.cpu
        assert left.mem + kernel.slots.mem == empty.mem
        assert sum(empty.gpu_free) - sum(left.gpu_free) == sum(share.amount for share in shares)


# Examples


def codes(plan: Plan) -> dict[str, WaitCode]:
    return {session_id: wait.code for session_id, wait in plan.waits.items()}


def placed_names(snapshot: Snapshot, policy: Policy = ONE_AGENT_EACH) -> list[str]:
    names = {session.id: session.name for session in snapshot.sessions}
    return [names[placement.session_id] for placement in schedule(snapshot, policy).placements]


def test_higher_priority_goes_first_then_first_in_first_out():
    queue = [make_session(1), make_session(2, priority=90), make_session(3), make_session(4, priority=10)]
    assert [session.name for session in queue_order(queue)] == ["s2", "s1", "s3", "s4"]


def test_a_small_session_waits_behind_a_large_one_that_is_busy():
    runs = placed_on(make_session(1, cpu=3), "a1")
    snapshot = Snapshot((make_agent(cpus=4),), (runs, large := make_session(2, cpu=2), small := make_session(3)), NOW)
    plan = schedule(snapshot, ONE_AGENT_EACH)
    assert codes(plan) == {large.id: WaitCode.BUSY, small.id: WaitCode.BEHIND}
    assert plan.waits[small.id].message == "waits behind s2, which is ahead of it in the queue"


def test_groups_have_queues_of_their_own():
    known = (make_agent("a1", cpus=1), make_agent("a2", cpus=1, resource_group="gpu"))
    runs = placed_on(make_session(1), "a1")
    snapshot = Snapshot(known, (runs, make_session(2), make_session(3, resource_group="gpu")), NOW)
    assert placed_names(snapshot) == ["s3"]


def test_a_session_that_waits_for_a_retry_holds_back_nobody():
    waits = make_session(1, retry_at=NOW + 5, reason="no such image")
    plan = schedule(Snapshot((make_agent(),), (waits, make_session(2)), NOW), ONE_AGENT_EACH)
    assert codes(plan) == {waits.id: WaitCode.RETRY}
    assert "no such image" in plan.waits[waits.id].message
    assert len(plan.placements) == 1


def test_a_retry_whose_time_has_come_is_placed():
    assert placed_names(Snapshot((make_agent(),), (make_session(1, retry_at=NOW),), NOW)) == ["s1"]


def test_a_group_without_agents_is_named():
    session = make_session(1, resource_group="tpu")
    wait = schedule(Snapshot((make_agent(),), (session,), NOW), ONE_AGENT_EACH).waits[session.id]
    assert wait.code is WaitCode.NO_AGENTS
    assert "tpu" in wait.message


def test_a_session_that_only_a_lost_agent_could_hold_is_busy_not_impossible():
    lost = replace(make_agent("a2", cpus=64), state=AgentState.LOST)
    session = make_session(1, cpu=32)
    wait = schedule(Snapshot((make_agent(cpus=4), lost), (session,), NOW), ONE_AGENT_EACH).waits[session.id]
    assert wait.code is WaitCode.BUSY
    assert wait.filtered == {"lost": 1}


@pytest.mark.parametrize(("state", "asked"), [("SCHEDULED", 1), ("PREPARING", 1), ("RUNNING", 1), ("TERMINATING", 1)])
def test_a_session_keeps_its_room_until_it_has_ended(state, asked):
    holder = placed_on(make_session(1, cpu=4), "a1", state=state)
    assert placed_names(Snapshot((make_agent(cpus=4),), (holder, make_session(2, cpu=asked)), NOW)) == []


def test_a_gang_goes_to_the_agent_that_it_fills_best():
    known = (make_agent("a1", cpus=16), make_agent("a2", cpus=4))
    plan = schedule(Snapshot(known, (make_session(1, cpu=2, cluster_size=2),), NOW), ONE_AGENT_EACH)
    assert {a.agent_id for a in plan.placements[0].allocations.values()} == {"a2"}


def test_a_gang_is_spread_only_where_it_must_be_and_may():
    known = (make_agent("a1", cpus=2), make_agent("a2", cpus=2))
    gang = make_session(1, cluster_size=4, cluster_mode="multi-node")
    assert placed_names(Snapshot(known, (gang,), NOW), ONE_AGENT_EACH) == []
    plan = schedule(Snapshot(known, (gang,), NOW), SPREADING)
    assert plan.placements[0].mode == "multi-node"
    pinned = make_session(2, cluster_size=4, cluster_mode="single-node")
    assert placed_names(Snapshot(known, (pinned,), NOW), SPREADING) == []


def test_half_an_fgpu_does_not_come_from_two_halves_of_two_gpus():
    agent = make_agent(cpus=16, gpus=2, units_per_gpu=1)
    taken = make_session(1, fgpu="0.75", cluster_size=2)
    first = schedule(Snapshot((agent,), (taken,), NOW), ONE_AGENT_EACH).placements[0]
    runs = replace(
        placed_on(taken, "a1"), kernels=tuple(replace(k, allocation=first.allocations[k.id]) for k in taken.kernels)
    )
    session = make_session(2, fgpu="0.5")
    wait = schedule(Snapshot((agent,), (runs, session), NOW), ONE_AGENT_EACH).waits[session.id]
    assert wait.code is WaitCode.BUSY
    assert "side by side" in wait.message


def test_a_whole_gpu_stays_whole_when_the_site_cuts_its_gpus_differently():
    holder = make_session(1, gpu=1)
    uncut, cut = (make_agent(gpus=1, units_per_gpu=units) for units in (0, 4))
    allocation = schedule(Snapshot((uncut,), (holder,), NOW), ONE_AGENT_EACH).placements[0].allocations[holder.id]
    runs = replace(placed_on(holder, "a1"), kernels=(replace(holder.main, allocation=allocation),))
    assert placed_names(Snapshot((cut,), (runs, make_session(2, fgpu=1)), NOW)) == []


@example(Slots(cpu=1), Slots())
@given(
    st.builds(Slots, cpu=st.integers(0, 9), mem=st.integers(0, 9)),
    st.builds(Slots, cpu=st.integers(0, 9), mem=st.integers(0, 9)),
)
def test_slots_fit_exactly_when_nothing_is_beyond(wanted, room):
    assert wanted.fits_in(room) == (not wanted.beyond(room))
    assert (room + wanted) - wanted == room


def test_shares_of_a_gang_that_only_a_clever_packing_fits_are_found():
    """0.4 twice and 0.3 four times fill two GPUs, but not if each share goes to the fullest GPU that holds it."""
    roles = [{"name": "ps", "replicas": 2, "fgpu": "0.4"}, {"name": "worker", "replicas": 3, "fgpu": "0.3"}]
    gang = make_session(1, fgpu="0.3", cpu="0.1", mem=64 * M, shm=0, roles=roles)
    assert placed_names(Snapshot((make_agent(gpus=2, units_per_gpu=1),), (gang,), NOW)) == ["s1"]


@given(st.lists(st.integers(1, 10), max_size=8), st.lists(st.integers(0, 10), max_size=4))
def test_a_packing_is_found_exactly_when_there_is_one(amounts, free):
    found = packing(amounts, free)
    left = list(free)
    for amount, gpu in zip(amounts, found or [], strict=False):
        left[gpu] -= amount
    assert min(left, default=0) >= 0
    ways = {tuple(free)}
    for amount in amounts:
        ways = {(*w[:i], w[i] - amount, *w[i + 1 :]) for w in ways for i in range(len(w)) if w[i] >= amount}
    assert (found is not None) == bool(ways)


def test_a_gang_of_a_thousand_shares_that_cannot_fit_gets_its_answer():
    gang = make_session(1, fgpu="0.3", cpu="0.01", mem=32 * M, shm=0, cluster_size=1000)
    known = (make_agent(cpus=64, mem_bytes=1 << 40, gpus=8, units_per_gpu=30, cpu_overcommit=16),)
    plan = schedule(Snapshot(known, (gang, make_session(2)), NOW), ONE_AGENT_EACH)
    assert codes(plan) == {gang.id: WaitCode.NEVER_FITS}
