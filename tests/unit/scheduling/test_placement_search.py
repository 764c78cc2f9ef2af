"""Gangs of unequal kernels over several agents: they are placed where that is possible, or refused with a proof."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.schedule import schedule
from tests.properties import dear
from tests.strategies.agents import joined_agent
from tests.strategies.capacity import some_arrangement_exists
from tests.strategies.sessions import make_session, placed_on, uneven
from tests.strategies.snapshots import uneven_gangs
from tests.strategies.values import GIB, NOW


def test_the_agent_that_alone_can_hold_a_kernel_is_kept_for_it():
    agents = (joined_agent("n0", cpus=8, mem=32 * GIB, gpus=2), joined_agent("n1", cpus=4, mem=64 * GIB, gpus=8))
    session = uneven({"cpu": 8, "mem": "2G"}, cpu=2, mem="16G")
    plan = schedule(Snapshot(agents, (session,), NOW))
    (placement,) = plan.placements
    assert [placement.allocations[kernel.id].agent_id for kernel in session.kernels] == ["n1", "n0"]


def test_a_gang_that_only_a_search_finds_places_for_is_placed():
    """Of 5, 4, 4, 3, 2 and 2 cores, the first two leave a core over on an agent of 10."""
    agents = (joined_agent("n0", cpus=10), joined_agent("n1", cpus=10))
    session = uneven({"cpu": 4, "replicas": 2}, {"cpu": 3}, {"cpu": 2, "replicas": 2}, cpu=5)
    assert len(schedule(Snapshot(agents, (session,), NOW)).placements) == 1


def test_the_search_proves_that_kernels_fit_in_no_order():
    """Three kernels of 5 cores and one of 1 are 16 in total, but two agents of 8 hold only one of 5 each."""
    agents = (joined_agent("n0", cpus=8), joined_agent("n1", cpus=8))
    session = uneven({"cpu": 5, "replicas": 2}, {"cpu": 1}, cpu=5)
    assert schedule(Snapshot(agents, (session,), NOW)).waits[session.id].code is WaitCode.NEVER_FITS


@dear
@given(uneven_gangs())
def test_an_uneven_gang_is_placed_on_empty_agents_if_and_only_if_some_arrangement_exists(case):
    agents, session = case
    plan = schedule(Snapshot(agents, (session,), NOW))
    exists = some_arrangement_exists(session.kernels, agents)
    assert bool(plan.placements) == exists
    if not exists:
        assert plan.waits[session.id].code is WaitCode.NEVER_FITS


@dear
@given(uneven_gangs(), st.sampled_from((1, 2, 3)))
def test_an_uneven_gang_is_placed_in_what_is_left_if_some_arrangement_exists(case, cpu):
    agents, session = case
    other = placed_on(replace(make_session(9, cpu=cpu, shm=0), submitted_at=NOW), "a1")
    plan = schedule(Snapshot(agents, (other, session), NOW))
    assert bool(plan.placements) == some_arrangement_exists(session.kernels, agents, other.kernels)
