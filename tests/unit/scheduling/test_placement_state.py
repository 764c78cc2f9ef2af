"""`PlacementState`: gangs whole, nothing promised twice, and as good an answer as an obvious search gives."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.agents.agent import Agent
from muster.core.model.policy import PACK
from muster.core.model.session import Allocation, Kernel, Session
from muster.core.model.wait import NearestMiss, WaitCode
from muster.core.scheduling.placement import (
    Constraint,
    Gang,
    Mix,
    PlacementState,
    Typical,
    gang_of,
    typical_requests,
)
from muster.core.scheduling.reasons import obstacle
from muster.core.scheduling.schedule import schedule
from muster.core.values.slots import Slots
from muster.service.scheduler.plugins import load_placement
from tests.properties import cheap, dear
from tests.strategies.agents import agents, make_agent
from tests.strategies.capacity import Ledger, granted, some_arrangement_exists
from tests.strategies.sessions import make_session
from tests.strategies.snapshots import snapshots
from tests.strategies.specs import gang_specs
from tests.strategies.values import M

POLICIES = tuple(load_placement(name) for name in ("pack", "spread", "round_robin", "fragmentation"))
MIX = Mix(
    (
        Typical(Slots(cpu=1000, mem=512 * M, fgpu=500), (), 3.0),
        Typical(Slots(cpu=500, mem=64 * M, gpu=1), (), 2.0),
        Typical(Slots(cpu=3000, mem=64 * M), (), 1.0),
    )
)
policies = st.sampled_from(POLICIES)


def sessions_of(draw, count: int) -> list[Session]:
    fields = {"name", "image"}
    specs = [draw(gang_specs()) for _ in range(count)]
    return [make_session(n, **spec.model_dump(exclude=fields, mode="json")) for n, spec in enumerate(specs, 1)]


sessions = st.composite(lambda draw: sessions_of(draw, draw(st.integers(1, 5))))()


def with_places(session: Session, allocations: Sequence[Allocation]) -> tuple[Kernel, ...]:
    return tuple(replace(k, allocation=a) for k, a in zip(session.kernels, allocations, strict=True))


def fill(state: PlacementState, waiting: Sequence[Session]) -> list[tuple[Kernel, ...]]:
    """Place those that fit, one after the other."""
    placed = []
    for session in waiting:
        allocations = state.place(gang_of(session, overlay=True))
        if allocations:
            placed.append(with_places(session, allocations))
    return placed


@given(agents(min_size=1, max_size=4), sessions, policies)
def test_nothing_is_promised_twice_and_gangs_are_whole(known, waiting, policy):
    state = PlacementState.of(known, {}, policy, MIX)
    ledger = Ledger.of(known)
    for kernels in fill(state, waiting):
        for kernel in kernels:
            ledger.charge(kernel)
            whole = [share for share in kernel.allocation.gpus if share.whole]
            amount = sum(share.amount for share in kernel.allocation.gpus)
            assert len(kernel.allocation.gpus) - len(whole) <= 1
            assert (len(whole) == kernel.slots.gpu) if kernel.slots.gpu else (amount == kernel.slots.fgpu)
    assert ledger.overdrawn == []
    assert {a: (free.cpu, free.mem) for a, free in state.free.items()} == {
        a: (ledger.cpu[a], ledger.mem[a]) for a in ledger.cpu
    }


@given(agents(min_size=1, max_size=3), sessions, policies)
def test_a_gang_that_one_agent_could_hold_in_any_way_is_placed_on_one(known, waiting, policy):
    state = PlacementState.of(known, {}, policy, MIX)
    used: list[Kernel] = []
    for session in waiting:
        possible = any(some_arrangement_exists(session.kernels, [agent], on(used, agent)) for agent in known)
        allocations = state.place(gang_of(session, overlay=True))
        assert possible == (allocations is not None and len({a.agent_id for a in allocations}) == 1)
        used.extend(with_places(session, allocations or ()) if allocations else ())


def on(kernels: Sequence[Kernel], agent: Agent) -> list[Kernel]:
    return [kernel for kernel in kernels if kernel.allocation.agent_id == agent.id]


@given(agents(min_size=1, max_size=3), sessions, policies)
def test_released_capacity_can_be_placed_again(known, waiting, policy):
    state = PlacementState.of(known, {}, policy, MIX)
    before = state.free
    placed = fill(state, waiting)
    after = state.free
    for kernels in placed:
        state.release(kernels)
    assert state.free == before
    again = fill(state, waiting)
    assert (again, state.free) == (placed, after)


@given(agents(min_size=1, max_size=3), sessions, policies)
def test_rooms_of_what_runs_are_the_rooms_after_placing_it(known, waiting, policy):
    state = PlacementState.of(known, {}, policy, MIX)
    placed = fill(state, waiting[:-1])
    by_agent: dict[str, list[Kernel]] = {}
    for kernel in (kernel for kernels in placed for kernel in kernels):
        by_agent.setdefault(kernel.allocation.agent_id, []).append(kernel)
    afresh = PlacementState.of(list(reversed(known)), by_agent, policy, MIX)
    assert afresh.free == state.free
    gang = gang_of(waiting[-1], overlay=True)
    assert afresh.fits(gang) == state.fits(gang)
    assert afresh.place(gang) == state.place(gang)


@given(agents(min_size=1, max_size=3), sessions, sessions, policies)
def test_a_copy_goes_its_own_way(known, first, second, policy):
    state = PlacementState.of(known, {}, policy, MIX)
    fill(state, first)
    free, twin = state.free, state.copy()
    placed = fill(twin, second)
    assert state.free == free
    assert fill(state, second) == placed
    assert state.free == twin.free


@given(agents(min_size=1, max_size=3), sessions, sessions, sessions, policies)
def test_the_least_of_two_holds_only_what_both_hold(known, first, second, third, policy):
    one, other = (PlacementState.of(known, {}, policy, MIX) for _ in range(2))
    fill(one, first)
    fill(other, second)
    least = one.least(other)
    for agent_id, free in least.free.items():
        for state in (one, other):
            assert not free.beyond(state.free[agent_id])
    assert one.least(one).free == one.free
    assert least.free == other.least(one).free
    for session in third:
        gang = replace(gang_of(session, overlay=False))
        if least.fits(gang):
            assert one.fits(gang)
            assert other.fits(gang)


@given(agents(min_size=1, max_size=4), sessions, policies, st.sets(st.sampled_from(("a1", "a2", "a3"))))
def test_closed_agents_take_nothing(known, waiting, policy, closed):
    for_all = PlacementState.of(known, {}, policy, MIX, dict.fromkeys(closed, "drained"))
    for_one = PlacementState.of(known, {}, policy, MIX)
    for session in waiting:
        gang = gang_of(session, overlay=True)
        allocations = for_one.place(gang, frozenset(closed))
        assert not {a.agent_id for a in allocations or ()} & closed
        assert for_all.place(gang) == allocations
        if allocations is None:
            by_session, by_all = for_one.misses(gang, frozenset(closed)), for_all.misses(gang)
            assert by_session.considered == by_all.considered
            assert by_session.nearest == by_all.nearest


@given(agents(min_size=1, max_size=3), sessions, policies)
def test_a_session_that_fits_is_placed(known, waiting, policy):
    state = PlacementState.of(known, {}, policy, MIX)
    for session in waiting:
        gang = gang_of(session, overlay=True)
        assert state.fits(gang) == (state.place(gang) is not None)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("topology", ["any", "prefer-rack", "one-rack"])
def test_a_gang_prefers_one_rack_to_fewer_agents(policy, topology):
    racks = {"a1": "r1", "a2": "r2", "a3": "r2", "a4": "r2", "a5": "r1"}
    cpus = {"a1": 8, "a2": 4, "a3": 4, "a4": 4, "a5": 2}
    known = [make_agent(a, cpus=cpus[a], swarm="worker", rack=rack) for a, rack in racks.items()]
    gang = Gang((Slots(cpu=1000),) * 12, spread=True, constraint=Constraint(topology=topology))
    allocations = PlacementState.of(known, {}, policy).place(gang)
    fewest = {"a1", "a2"}
    assert {a.agent_id for a in allocations} == (fewest if topology == "any" else {"a2", "a3", "a4"})
    larger = replace(gang, slots=(Slots(cpu=1000),) * 14)
    assert (PlacementState.of(known, {}, policy).place(larger) is None) == (topology == "one-rack")


def test_a_zone_serves_where_no_rack_does():
    places = {"a1": ("r1", "z1"), "a2": ("r2", "z2"), "a3": ("r3", "z2")}
    known = [make_agent(a, cpus=2, swarm="worker", rack=rack, zone=zone) for a, (rack, zone) in places.items()]
    allocations = PlacementState.of(known, {}, PACK).place(Gang((Slots(cpu=1000),) * 4, spread=True))
    assert Counter(a.agent_id for a in allocations) == {"a2": 2, "a3": 2}


def uniform(count: int = 1, **requested: int) -> Gang:
    return Gang((Slots(**{"cpu": 1000, **requested}),) * count)


def where(state: PlacementState, *gangs: Gang) -> list[str]:
    """Return the agent of each gang's first kernel."""
    return [state.place(gang)[0].agent_id for gang in gangs]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("pack", ["a1", "a1", "a1", "a2", "a2", "a2"]),
        ("spread", ["a2", "a1", "a2", "a1", "a2", "a1"]),
        ("round_robin", ["a1", "a2", "a1", "a2", "a1", "a2"]),
    ],
)
def test_policies_choose_as_their_names_say(policy, expected):
    known = [make_agent("a1", gpus=3), make_agent("a2", gpus=4)]
    assert where(PlacementState.of(known, {}, load_placement(policy)), *[uniform(gpu=1)] * 6) == expected


def test_shares_fill_a_gpu_when_packed_and_take_turns_when_spread():
    known = [make_agent("a1", gpus=2, units_per_gpu=1)]
    used = {}
    for policy in ("pack", "spread"):
        state = PlacementState.of(known, {}, load_placement(policy))
        used[policy] = [state.place(uniform(fgpu=300))[0].gpus[0].uuid for _ in range(4)]
    first, second = (gpu.uuid for gpu in known[0].gpus)
    assert used == {"pack": [first, first, first, second], "spread": [first, second, first, second]}


def test_a_share_goes_where_typical_requests_lose_least():
    """0.5 beside 0.5 leaves a GPU whole; alone, it would strand what the typical request of a whole GPU needs."""
    known = [make_agent("a1", gpus=1, units_per_gpu=1), make_agent("a2", gpus=1, units_per_gpu=1)]
    state = PlacementState.of(known, {}, load_placement("fragmentation"), Mix((Typical(Slots(cpu=1000, gpu=1)),)))
    assert len(set(where(state, uniform(fgpu=500), uniform(fgpu=500)))) == 1


def test_an_agent_that_is_out_of_balance_is_used_before_another_is_opened():
    """What strays already costs nothing: a request goes beside it, and the other agent stays whole."""
    known = [make_agent("a1", cpus=8, gpus=4), make_agent("a2", cpus=8, gpus=4)]
    state = PlacementState.of(known, {}, load_placement("fragmentation"), Mix((Typical(Slots(cpu=500, gpu=1)),)))
    assert where(state, uniform(cpu=500, gpu=2), uniform(cpu=500, gpu=1)) == ["a1", "a1"]


def test_gpus_that_requests_name_are_kept_for_them():
    known = [
        replace(agent, gpus=tuple(replace(gpu, model=model) for gpu in agent.gpus))
        for agent, model in (
            (make_agent("a1", gpus=2), "NVIDIA A100-SXM4-40GB"),
            (make_agent("a2", gpus=2), "Tesla T4"),
        )
    ]
    named = Typical(Slots(cpu=1000, gpu=1), ("a100",), 1.0)
    state = PlacementState.of(known, {}, load_placement("fragmentation"), Mix((named, Typical(Slots(cpu=1000, gpu=1)))))
    requested = replace(uniform(gpu=1), constraint=Constraint(gpu_models=("a100",)))
    assert where(state, uniform(gpu=1), uniform(gpu=1), requested, requested) == ["a2", "a2", "a1", "a1"]
    assert state.misses(requested).filtered == {"GPU model": 1}


def test_whole_gpus_are_of_one_numa_node_where_they_can_be():
    agent = make_agent(gpus=4)
    known = [
        replace(
            agent, gpus=tuple(replace(gpu, numa_node=node) for gpu, node in zip(agent.gpus, (0, 1, 0, 1), strict=True))
        )
    ]
    state = PlacementState.of(known, {}, PACK)
    allocations = [state.place(uniform(gpu=count))[0] for count in (2, 1, 1)]
    assert [(allocation.numa_nodes, len(allocation.gpus)) for allocation in allocations] == [
        ((0,), 2),
        ((1,), 1),
        ((1,), 1),
    ]
    assert PlacementState.of(known, {}, PACK).place(uniform(gpu=3))[0].numa_nodes == (0, 1)
    assert PlacementState.of(known, {}, PACK).place(uniform())[0].numa_nodes == ()


@pytest.mark.parametrize(
    ("constraint", "expected", "filtered"),
    [
        (Constraint(agents=("a2", "a9")), "a2", {"not designated": 2}),
        (Constraint(exclude_agents=("a1",)), "a2", {"excluded": 1}),
        (Constraint(labels=(("disk", "ssd"),)), "a3", {"label": 2}),
        (Constraint(labels=(("disk", "tape"),)), None, {"label": 3}),
    ],
)
def test_constraints_are_kept(constraint, expected, filtered):
    labels = {"a1": {}, "a2": {"disk": "hdd"}, "a3": {"disk": "ssd", "net": "ib"}}
    state = PlacementState.of([make_agent(agent_id, labels=of) for agent_id, of in labels.items()], {}, PACK)
    gang = replace(uniform(), constraint=constraint)
    assert state.misses(gang).filtered == filtered
    allocations = state.place(gang)
    assert (allocations[0].agent_id if allocations else None) == expected


def test_a_miss_names_the_nearest_agent_and_counts_what_is_exhausted():
    known = [make_agent("a1", cpus=2, gpus=1), make_agent("a2", cpus=8, gpus=4), make_agent("a3", cpus=64)]
    state = PlacementState.of(known, {}, PACK, Mix(), {"a1": "drained"})
    state.place(uniform(1, gpu=1))
    misses = state.misses(uniform(4, gpu=1))
    assert (misses.considered, misses.filtered, misses.exhausted) == (2, {"drained": 1}, {"gpu": 2})
    assert (misses.nearest.agent_id, misses.nearest.missing) == ("a2", {"gpu": 1})


def test_an_agent_that_has_too_little_in_all_is_not_near_unless_it_shall_be():
    state = PlacementState.of([make_agent("a1", cpus=8, gpus=3)], {}, PACK)
    assert state.misses(uniform(4, gpu=1)).nearest is None
    assert state.misses(uniform(4, gpu=1), beyond=True).nearest == NearestMiss("a1", {"gpu": 1})


def test_whole_gpus_and_shares_are_missed_from_one_pool():
    """Two GPUs: one is taken whole for the first kernel, and 0.6 of the other is in use."""
    state = PlacementState.of([make_agent("a1", cpus=8, gpus=2, units_per_gpu=1)], {}, PACK)
    state.place(uniform(1, fgpu=600))
    gang = Gang((Slots(cpu=1000, mem=1, fgpu=0, gpu=1), Slots(cpu=1000, mem=1, fgpu=500, gpu=0)))
    assert state.misses(gang).nearest == NearestMiss("a1", {"fgpu": 100})


def test_a_gang_over_agents_misses_only_the_kernels_left_over():
    known = [make_agent(f"a{number}", cpus=4, swarm="manager") for number in (1, 2)]
    state = PlacementState.of(known, {}, PACK)
    state.place(uniform(1, cpu=2000))
    misses = state.misses(replace(uniform(4, cpu=2000), spread=True))
    assert (misses.held, misses.nearest) == (3, NearestMiss("a1", {"cpu": 2000}))


@dear
@given(snapshots())
def test_with_what_the_nearest_agent_lacks_a_gang_fits(snapshot):
    plan = schedule(snapshot)
    started = {placement.session_id: placement.allocations for placement in plan.placements}
    for session in snapshot.pending:
        wait = plan.waits.get(session.id)
        if wait is None or wait.code is not WaitCode.BUSY or wait.nearest is None or not wait.nearest.missing:
            continue
        group = session.spec.resource_group
        known = [agent for agent in snapshot.agents if agent.resource_group == group]
        held = [kernel for other in snapshot.placed for kernel in other.kernels]
        for other in snapshot.pending:
            held += [replace(k, allocation=started[other.id][k.id]) for k in other.kernels if other.id in started]
        closed = {agent.id: cause for agent in known if (cause := obstacle(agent, snapshot))}
        state = PlacementState.of(known, {"": held}, PACK, Mix(), closed)
        gang = gang_of(session, overlay=snapshot.overlay_keeper is not None)
        assert not state.fits(gang)
        state.release([granted(known, held, wait.nearest)])
        assert state.fits(gang)


def test_more_kinds_of_gangs_than_are_remembered_are_placed():
    known = [make_agent("a1", mem_bytes=1 << 30)]
    state = PlacementState.of(known, {}, PACK)
    amounts = [*range(1, 2500), *range(1, 2500)]
    assert all(state.place(Gang((Slots(mem=amount),))) for amount in amounts)
    assert state.free["a1"].mem == known[0].capacity.mem - sum(amounts)


def test_sessions_on_hosts_that_shrank_may_exceed_their_capacity():
    session = make_session(1, cpu=8)
    kernel = replace(session.main, allocation=Allocation("a1"))
    state = PlacementState.of([make_agent("a1", cpus=4)], {"a1": [kernel]}, PACK)
    assert state.free["a1"].cpu == 0
    assert not state.fits(uniform())
    state.release([kernel])
    assert state.free["a1"].cpu == 4000


@cheap
@given(st.permutations([(1, 0), (2, 0), (3, 0), (1, 1), (1, 2)]))
def test_typical_requests_that_are_equally_frequent_come_in_one_order_only(order):
    gangs = [Gang((Slots(cpu=cpu, mem=1, fgpu=0, gpu=gpu),)) for cpu, gpu in order]
    assert [request.slots.cpu for request in typical_requests(gangs)] == [1, 1, 3, 2, 1]
