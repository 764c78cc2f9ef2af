"""A pass moves its own placements for a gang that does not fit, and no admitted session loses its place."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.model.plan import Plan
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.repack import Repacker
from muster.core.scheduling.schedule import schedule
from tests.properties import dear
from tests.strategies.agents import joined_agent, make_agent
from tests.strategies.capacity import Ledger
from tests.strategies.sessions import make_session, placed_on
from tests.strategies.values import NOW


def without_trials(snapshot: Snapshot) -> Plan:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Repacker, "repacked", lambda *_args: None)
        return schedule(snapshot)


def test_a_gang_starts_that_fits_once_those_before_it_lie_elsewhere():
    """Of 3, 2, 3 and 4 cores, best fit lays the first two together: then no agent has four left for the last."""
    agents = (make_agent("a1", cpus=6), make_agent("a2", cpus=6))
    queue = tuple(make_session(number, cpu=cpu, shm=0) for number, cpu in enumerate((3, 2, 3, 4), 1))
    snapshot = Snapshot(agents, queue, NOW)
    assert len(without_trials(snapshot).placements) == 3
    assert len(schedule(snapshot).placements) == 4


def test_the_free_total_has_to_do():
    queue = (make_session(1, cpu=3, shm=0), make_session(2, cpu=2, shm=0))
    assert len(schedule(Snapshot((make_agent("a1", cpus=4),), queue, NOW)).placements) == 1


@st.composite
def queues(draw: st.DrawFn) -> Snapshot:
    """Draw a queue of gangs that ask for about as much as a few agents have, beside some that run."""
    agents = tuple(
        joined_agent(
            f"a{number}", cpus=draw(st.sampled_from((8, 16))), gpus=draw(st.sampled_from((2, 4))), mem=64 << 30
        )
        for number in range(draw(st.integers(2, 4)))
    )
    queue = []
    for number in range(draw(st.integers(2, 9))):
        gpu = draw(st.integers(0, 3))
        mode = draw(st.sampled_from(("single-node", "multi-node")))
        size = draw(st.integers(1, 3))
        cpu = draw(st.integers(1, 5))
        limit = draw(st.sampled_from((None, None, 600)))
        shape = {"gpu": gpu, "cpu": cpu, "cluster_size": size, "cluster_mode": mode, "time_limit": limit}
        queue.append(make_session(number, shm=0, mem="1G", **shape))
    runs = [placed_on(make_session(90, cpu=2, shm=0), "a0")] if draw(st.booleans()) else []
    return Snapshot(agents, (*runs, *queue), NOW)


@dear
@given(queues())
def test_no_admitted_session_loses_its_place(snapshot):
    """Up to the first that starts only now, the same start, and what lay on one agent still does."""
    before = {placement.session_id: placement for placement in without_trials(snapshot).placements}
    after = {placement.session_id: placement for placement in schedule(snapshot).placements}
    for session in snapshot.pending:
        assert session.id in after or session.id not in before
        if session.id in after and session.id not in before:
            return
        if session.id in before and before[session.id].mode == "single-node":
            assert after[session.id].mode == "single-node"


@dear
@given(queues())
def test_nothing_is_promised_twice_and_the_same_queue_gives_the_same_plan(snapshot):
    plan = schedule(snapshot)
    ledger = Ledger.of(snapshot.agents)
    by_id = {session.id: session for session in snapshot.sessions}
    for kernel in (kernel for session in snapshot.placed for kernel in session.kernels):
        ledger.charge(kernel)
    for placement in plan.placements:
        for kernel in by_id[placement.session_id].kernels:
            ledger.charge(replace(kernel, allocation=placement.allocations[kernel.id]))
    assert ledger.overdrawn == []
    assert schedule(replace(snapshot, agents=tuple(reversed(snapshot.agents)))) == plan
