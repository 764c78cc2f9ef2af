"""Shortcuts that only save time: one kernel stands for alike ones, and one agent for its twins."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from muster.core.agents.agent import Agent
from muster.core.model.policy import PACK, PlacementPolicy
from muster.core.model.session import AllocatedSlots, Allocation, kernel_count, kernels_of
from muster.core.scheduling.placement import Constraint, Gang, Mix, PlacementState, Typical, gang_of
from muster.core.values.slots import Slots
from muster.service.scheduler.plugins import load_placement
from tests.properties import dear
from tests.strategies.agents import joined_agent
from tests.strategies.sessions import make_session
from tests.strategies.specs import gang_specs, specs
from tests.strategies.values import M, new_id

POLICIES = (PACK, *map(load_placement, ("spread", "round_robin", "fragmentation")))
MIX = Mix((Typical(Slots(cpu=1000, fgpu=500), (), 3.0), Typical(Slots(cpu=500, gpu=1), (), 2.0)))


@dear
@given(st.one_of(specs(), gang_specs()), st.booleans())
def test_a_gang_is_what_each_of_its_kernels_asks_for(spec, overlay):
    """The gang, put together kernel by kernel from the spec's words, whatever is known of others like it."""
    kernels = kernels_of(spec, tuple(new_id(1, number) for number in range(kernel_count(spec))), "busybox")
    session = replace(make_session(1), spec=spec, kernels=kernels)
    constraint = Constraint(
        tuple(sorted(spec.gpu_models)),
        tuple(sorted(spec.labels.items())),
        tuple(sorted(spec.agents)),
        tuple(sorted(spec.exclude_agents)),
        spec.topology,
    )
    several = len(kernels) > 1 and spec.cluster_mode == "multi-node"
    expected = Gang(tuple(kernel.slots for kernel in kernels), several and overlay, constraint)
    for _ in range(2):
        assert gang_of(session, overlay=overlay) == expected


@dear
@given(st.lists(st.tuples(gang_specs(), st.booleans()), min_size=2, max_size=6))
def test_the_gangs_of_sessions_are_equal_where_their_requests_are(drawn):
    """Sessions share one value, by which a pass knows that they are alike, if and only if they ask for the same."""
    sessions = []
    for number, (spec, named) in enumerate(drawn):
        own = spec.model_copy(update={"agents": ("a1",) if named else ()})
        kernels = kernels_of(own, tuple(new_id(number, n) for n in range(kernel_count(own))), "busybox")
        sessions.append(replace(make_session(number), spec=own, kernels=kernels))
    for one in sessions:
        for other in sessions:
            requests = [
                (tuple(k.slots for k in s.kernels), len(s.kernels) > 1 and s.spec.cluster_mode == "multi-node",
                 s.spec.agents, s.spec.topology)
                for s in (one, other)
            ]  # fmt: skip
            assert (gang_of(one, overlay=True) is gang_of(other, overlay=True)) == (requests[0] == requests[1])


# As much is free on the second as on the third, but only the second's GPU is cut.
HARDWARE = tuple({"gpus": gpus, "units_per_gpu": units} for gpus, units in ((2, 2), (1, 1), (1, 0), (0, 0)))
gangs = st.builds(
    Gang,
    st.integers(1, 3).flatmap(
        lambda count: st.sampled_from((
            Slots(cpu=500, mem=64 * M), Slots(cpu=1000, mem=64 * M, gpu=1), Slots(cpu=250, mem=64 * M, fgpu=500),
            Slots(cpu=250, mem=64 * M, fgpu=1500),
        )).map(lambda slots: (slots,) * count)
    ),
    st.booleans(),
)  # fmt: skip


@dear
@given(
    st.lists(st.sampled_from(HARDWARE), min_size=2, max_size=5),
    st.lists(gangs, min_size=1, max_size=3),
    st.sampled_from(POLICIES),
)
def test_what_is_found_out_for_one_of_equal_agents_holds_for_the_others(hardware, requests, policy):
    """Gangs go where they would if no two agents were alike: each with some bytes more, too few to count in a cost."""
    alike = [joined_agent(f"a{n}", cpus=4, mem_bytes=4096 * M, **each) for n, each in enumerate(hardware)]
    apart = [
        replace(agent, capacity=replace(agent.capacity, mem=agent.capacity.mem + number))
        for number, agent in enumerate(alike)
    ]
    assert places(alike, requests, policy) == places(apart, requests, policy)


def places(
    known: Sequence[Agent], requests: Sequence[Gang], policy: PlacementPolicy
) -> list[tuple[Allocation, ...] | None]:
    """Return where the requests go, one after the other: each is new to its state, and so looks at all agents."""
    found: list[tuple[Allocation, ...] | None] = []
    held: list[AllocatedSlots] = []
    for gang in requests:
        state = PlacementState.of(known, {}, policy, MIX)
        state.take(held)
        found.append(state.place(gang))
        held += [AllocatedSlots(slots, given) for slots, given in zip(gang.slots, found[-1] or (), strict=False)]
    return found
