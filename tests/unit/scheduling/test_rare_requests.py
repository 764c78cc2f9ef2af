"""Requests that few agents could ever hold: these are kept for them, however rarely they are made."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muster.core.model.policy import PACK
from muster.core.scheduling.placement import Gang, PlacementState, columns, mix_of
from muster.core.scheduling.placement.hardware import Hardware, parts_that_serve
from muster.core.scheduling.placement.weights import typical_array
from muster.core.values.slots import Slots
from muster.service.scheduler.plugins import load_placement
from tests.properties import cheap
from tests.strategies.agents import agents, make_agent
from tests.strategies.values import M


def uniform(**requested: int) -> Gang:
    return Gang((Slots(**{"cpu": 1000, **requested}),))


def where(state: PlacementState, *gangs: Gang) -> list[str]:
    return [state.place(gang)[0].agent_id for gang in gangs]


def test_an_agent_that_alone_could_hold_a_rare_request_is_kept_for_it():
    """Requests for one GPU and much cpu are sent to where cpu is, which is the agent that the rare one needs."""
    known = [make_agent("a1", cpus=32, gpus=2), *(make_agent(f"b{number}", cpus=8, gpus=2) for number in range(20))]
    usual, rare = uniform(cpu=6000, gpu=1), uniform(cpu=24_000, gpu=2)
    mix = mix_of({usual: 38, rare: 2})
    policy = load_placement("fragmentation")
    assert [request.slots.cpu for request in mix.others] == [24_000]
    state = PlacementState.of(known, {}, policy, mix)
    assert "a1" not in where(state, *[usual] * 20)
    assert where(state, rare) == ["a1"]
    without = PlacementState.of(known, {}, replace(policy, dearth=0.0), mix)
    assert where(without, usual) == ["a1"]
    # Keeping it costs nobody their room.
    assert where(PlacementState.of(known, {}, policy, mix), *[usual] * 22)[20:] == ["a1", "a1"]


def test_what_no_agent_could_hold_and_what_all_could_weigh_as_often_as_they_are_requested():
    known = [make_agent("a1", cpus=8, gpus=2), make_agent("a2", cpus=8, gpus=2)]
    usual, other, impossible = uniform(cpu=1000, gpu=1), uniform(cpu=1000, gpu=2), uniform(cpu=90_000, gpu=1)
    hardware, policy = Hardware.of(known), load_placement("fragmentation")
    rows = typical_array(policy, mix_of({usual: 97, other: 2, impossible: 1}), hardware)
    assert rows[:, columns.WEIGHT].tolist() == [1.0]
    rows = typical_array(policy, mix_of({usual: 50, other: 25, impossible: 25}), hardware)
    assert rows[:, columns.WEIGHT].tolist() == [0.5, 0.25, 0.25]


_cpu, _mem = st.sampled_from((250, 1000, 1500, 3000, 6000)), st.sampled_from((64 * M, 600 * M, 3000 * M))
requests = st.one_of(
    st.builds(Slots, cpu=_cpu, mem=_mem, gpu=st.integers(0, 3)),
    st.builds(Slots, cpu=_cpu, mem=_mem, fgpu=st.sampled_from((250, 400, 1000, 1500, 2500))),
)


@cheap
@given(agents(min_size=1, max_size=4), st.lists(requests, min_size=1, max_size=40), st.randoms())
def test_what_counts_does_not_depend_on_the_order_of_requests_and_agents(known, slots, chance):
    gangs, policy = [Gang((one,)) for one in slots], load_placement("fragmentation")
    array, again = (
        typical_array(policy, mix_of(chance.sample(gangs, len(gangs))), Hardware.of(chance.sample(known, len(known))))
        for _ in range(2)
    )
    assert np.array_equal(array, again)
    assert len(array) == 0 or abs(array[:, columns.WEIGHT].sum() - 1) < 1e-9


@cheap
@given(agents(min_size=1, max_size=4), requests.filter(lambda slots: slots.gpu or slots.fgpu))
def test_the_part_that_could_serve_is_of_the_agents_that_hold_one_when_they_are_empty(known, slots):
    hardware = Hardware.of(known)
    (part,) = parts_that_serve(hardware, [slots])
    holders = [agent for agent in known if PlacementState.of([agent], {}, PACK).fits(Gang((slots,)))]
    gpus, held = (sum(len(agent.gpus) for agent in some) for some in (known, holders))
    if holders:
        assert 0 < part <= held / gpus + 1e-9
    assert parts_that_serve(hardware, [slots]) == [part]
