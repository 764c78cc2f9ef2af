"""What is free on an agent, GPU by GPU."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.placement.corner import packing
from muster.core.scheduling.schedule import schedule
from muster.core.values.slots import Slots
from tests.properties import cheap
from tests.strategies.agents import make_agent
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW, M


@example(Slots(cpu=1), Slots())
@cheap
@given(
    st.builds(Slots, cpu=st.integers(0, 9), mem=st.integers(0, 9)),
    st.builds(Slots, cpu=st.integers(0, 9), mem=st.integers(0, 9)),
)
def test_what_is_beyond_is_just_what_is_missing(wanted, remaining):
    missing = wanted.beyond(remaining)
    assert all(getattr(wanted, name) - amount == getattr(remaining, name) for name, amount in missing.items())
    assert not wanted.beyond(remaining + Slots(**missing))
    assert (remaining + wanted) - wanted == remaining


@cheap
@given(st.lists(st.integers(1, 10), max_size=8), st.lists(st.integers(0, 10), max_size=4))
def test_a_packing_is_found_exactly_when_there_is_one(amounts, free):
    found = packing(amounts, free).entries
    left = list(free)
    for amount, gpu in zip(amounts, found or [], strict=False):
        left[gpu] -= amount
    assert min(left, default=0) >= 0
    ways = {tuple(free)}
    for amount in amounts:
        ways = {(*w[:i], w[i] - amount, *w[i + 1 :]) for w in ways for i in range(len(w)) if w[i] >= amount}
    assert (found is not None) == bool(ways)


def test_half_an_fgpu_does_not_come_from_two_halves_of_two_gpus():
    agent = make_agent(cpus=16, gpus=2, units_per_gpu=1)
    taken = make_session(1, fgpu="0.75", cluster_size=2)
    first = schedule(Snapshot((agent,), (taken,), NOW)).placements[0]
    runs = replace(
        placed_on(taken, "a1"), kernels=tuple(replace(k, allocation=first.allocations[k.id]) for k in taken.kernels)
    )
    session = make_session(2, fgpu="0.5")
    wait = schedule(Snapshot((agent,), (runs, session), NOW)).waits[session.id]
    assert wait.code is WaitCode.BUSY
    assert "agent a1 comes closest and lacks 0.25 fGPU" in wait.message


def test_a_whole_gpu_stays_whole_when_the_site_cuts_its_gpus_differently():
    holder = make_session(1, gpu=1)
    uncut, cut = (make_agent(gpus=1, units_per_gpu=units) for units in (0, 4))
    allocation = schedule(Snapshot((uncut,), (holder,), NOW)).placements[0].allocations[holder.id]
    runs = replace(placed_on(holder, "a1"), kernels=(replace(holder.main, allocation=allocation),))
    assert schedule(Snapshot((cut,), (runs, make_session(2, fgpu=1)), NOW)).placements == ()


def test_shares_of_a_gang_that_only_a_clever_packing_fits_are_found():
    """0.4 twice and 0.3 four times fill two GPUs, but not if each share goes to the fullest GPU that holds it."""
    roles = [{"name": "ps", "replicas": 2, "fgpu": "0.4"}, {"name": "worker", "replicas": 3, "fgpu": "0.3"}]
    gang = make_session(1, fgpu="0.3", cpu="0.1", mem=64 * M, shm=0, roles=roles)
    plan = schedule(Snapshot((make_agent(gpus=2, units_per_gpu=1),), (gang,), NOW))
    assert [placement.session_id for placement in plan.placements] == [gang.id]


def test_a_gang_of_a_thousand_shares_that_cannot_fit_gets_its_answer():
    gang = make_session(1, fgpu="0.3", cpu="0.01", mem=32 * M, shm=0, cluster_size=1000)
    known = (make_agent(cpus=64, mem_bytes=1 << 40, gpus=8, units_per_gpu=30, cpu_overcommit=16),)
    plan = schedule(Snapshot(known, (gang, make_session(2)), NOW))
    assert {session_id: wait.code for session_id, wait in plan.waits.items()} == {gang.id: WaitCode.NEVER_FITS}
