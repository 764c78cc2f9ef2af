"""On which GPU of an agent a share lies, and GPUs that one kernel takes whole."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.agents.agent import Agent, Gpu
from muster.core.model.policy import PACK
from muster.core.model.session import GpuShare
from muster.core.scheduling.placement import Gang, Mix, PlacementState, Typical, corner
from muster.core.values.slots import Slots
from tests.properties import cheap
from tests.strategies.agents import make_agent
from tests.strategies.values import M


def shared(agent_id: str = "a1", gpus: int = 3, choice: str = "policy") -> Agent:
    """Return an agent with GPUs of two units each."""
    cards = tuple(Gpu(f"GPU-{n}", n, "A", 8 << 30, units=2) for n in range(gpus))
    agent = replace(make_agent(agent_id), gpus=cards, fgpu_choice=choice)
    return replace(agent, capacity=replace(agent.capacity, cpu=64_000, gpu=gpus, fgpu=2000 * gpus))


def sliced(*sizes: int) -> Agent:
    """Return an agent with MIG instances of so many thousandths of a GPU of one unit."""
    instances = tuple(
        Gpu(f"MIG-{n}", 0, "A MIG", 1 << 30, units=1, exclusive=True, fraction=size) for n, size in enumerate(sizes)
    )
    agent = replace(make_agent("mig"), gpus=instances)
    return replace(agent, capacity=replace(agent.capacity, cpu=64_000, gpu=0, fgpu=sum(sizes)))


def asking(*fgpu: int, gpu: int = 0) -> Gang:
    return Gang(tuple(Slots(cpu=100, mem=M, fgpu=amount, gpu=gpu) for amount in fgpu))


NO_MIX = Mix()


def one_after_the_other(agent: Agent, *amounts: int, mix: Mix = NO_MIX) -> list[str]:
    state = PlacementState.of([agent], {}, PACK, mix)
    return [state.place(asking(amount))[0].gpus[0].uuid for amount in amounts]


def test_fill_takes_the_fullest_gpu_that_can():
    assert one_after_the_other(shared(choice="fill"), 500, 1500, 500, 400) == ["GPU-0", "GPU-0", "GPU-1", "GPU-1"]


def test_spread_takes_the_emptiest():
    assert one_after_the_other(shared(choice="spread"), 500, 500, 400, 500) == ["GPU-0", "GPU-1", "GPU-2", "GPU-2"]


def test_a_gang_that_is_spread_lies_on_a_gpu_each():
    state = PlacementState.of([shared(choice="spread")], {}, PACK)
    assert [a.gpus[0].uuid for a in state.place(asking(500, 500, 500))] == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_gang_that_fits_is_placed_whatever_the_choice():
    for choice in ("policy", "fill", "spread", "fragmentation"):
        state = PlacementState.of([shared(gpus=2, choice=choice)], {}, PACK)
        assert state.place(asking(1000, 1000, 2000)), choice


def test_the_least_fragmenting_gpu_leaves_what_typical_requests_can_use():
    # After the first 1200, GPU-0 has 800 left: of use to nobody. A share of 700 goes there.
    mix = Mix((Typical(Slots(cpu=100, mem=M, fgpu=2000)),))
    assert one_after_the_other(shared(choice="fragmentation"), 1200, 700, mix=mix) == ["GPU-0", "GPU-0"]


def test_an_instance_serves_one_kernel_and_the_smallest_that_fits_is_taken():
    state = PlacementState.of([sliced(857, 250, 500)], {}, PACK)
    shares = [state.place(asking(amount))[0].gpus for amount in (200, 200, 200)]
    assert shares == [
        (GpuShare("MIG-1", 250, whole=False, capacity=250),),
        (GpuShare("MIG-2", 500, whole=False, capacity=500),),
        (GpuShare("MIG-0", 857, whole=False, capacity=857),),
    ]
    assert state.place(asking(1)) is None


def test_no_kernel_gets_two_instances_nor_one_as_a_whole_gpu():
    state = PlacementState.of([sliced(857, 857)], {}, PACK)
    assert state.place(asking(900)) is None
    assert state.place(asking(0, gpu=1)) is None
    assert state.free["mig"].gpu == 0


@cheap
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=7), st.lists(st.integers(1, 1000), min_size=1, max_size=7))
def test_a_gang_gets_instances_exactly_when_each_kernel_can_have_one_that_is_large_enough(sizes, amounts):
    largest = sorted(sizes, reverse=True)
    demanding = sorted(amounts, reverse=True)
    can = len(amounts) <= len(sizes) and all(size >= amount for size, amount in zip(largest, demanding, strict=False))
    placed = PlacementState.of([sliced(*sizes)], {}, PACK).place(asking(*amounts))
    assert (placed is not None) == can
    if placed:
        assert len({allocation.gpus[0].uuid for allocation in placed}) == len(amounts)
        assert all(a.gpus[0].amount >= amount for a, amount in zip(placed, amounts, strict=True))


@pytest.mark.parametrize("amount", [250, 500])
def test_an_instance_is_free_again_when_its_kernel_has_gone(amount):
    state = PlacementState.of([sliced(500)], {}, PACK)
    before = state.free
    (allocation,) = state.place(asking(amount))
    holder = type("Holder", (), {"slots": asking(amount).slots[0], "allocation": allocation})
    assert state.place(asking(amount)) is None
    state.release([holder])
    assert state.free == before


@pytest.mark.parametrize(("units", "fits", "does_not"), [(1, 500, 501), (2, 1000, 1001), (3, 1500, 1501)])
def test_a_share_counts_as_its_part_of_the_gpu_however_that_is_cut_since(units, fits, does_not):
    half = next(iter(PlacementState.of([shared(gpus=1)], {}, PACK).place(asking(1000))))
    cut = replace(shared(gpus=1).gpus[0], units=units)
    recut = replace(shared(gpus=1), gpus=(cut,))
    recut = replace(recut, capacity=replace(recut.capacity, fgpu=cut.capacity))
    holder = type("Holder", (), {"slots": asking(1000).slots[0], "allocation": half})
    state = PlacementState.of([recut], {recut.id: [holder]}, PACK)
    assert state.place(asking(does_not)) is None
    assert state.place(asking(fits))


def test_what_searches_of_shares_may_cost_is_bounded_over_all_agents(monkeypatch):
    """No two agents have the same shares free, and each would be searched to its own bound."""
    steps = []
    packing = corner.packing

    def counted(*arguments: object) -> corner.Packing:
        found = packing(*arguments)
        steps.append(found.steps)
        return found

    monkeypatch.setattr(corner, "packing", counted)
    agents = [shared(f"a{number:02}", gpus=8) for number in range(40)]
    state = PlacementState.of(agents, {}, PACK)
    for number in range(40):
        alone = frozenset(agent.id for agent in agents) - {f"a{number:02}"}
        assert state.place(asking(2 * number + 1), alone)
    gang = asking(*(670 + number for number in range(23)))
    assert not state.fits(gang)
    assert len(steps) == 40
    assert corner.MAX_STEPS <= max(steps) < 1.1 * corner.MAX_STEPS
    assert sum(steps) < 11_000
