"""Where a gang goes: on one agent if that can hold it, otherwise on the fewest that an overlay network joins."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import WaitCode
from muster.core.scheduling.schedule import schedule
from tests.strategies.agents import agents, make_agent
from tests.strategies.capacity import some_arrangement_exists
from tests.strategies.sessions import make_session
from tests.strategies.values import NOW


def gang(size: int, **values: Any) -> Session:
    return make_session(1, cluster_size=size, **{"cluster_mode": "multi-node", **values})


def kernels_on(snapshot: Snapshot, session: Session) -> dict[str, int]:
    """Return how many of its kernels the plan puts on each agent; empty if it waits."""
    placements = [p for p in schedule(snapshot).placements if p.session_id == session.id]
    return dict(Counter(a.agent_id for placement in placements for a in placement.allocations.values()))


def placed_where(session: Session, *known: Agent, slow: Sequence[str] = ()) -> dict[str, int]:
    return kernels_on(Snapshot(known, (session,), NOW, frozenset(slow)), session)


def most_kernels(session: Session, agent: Agent) -> int:
    """Return how many of the gang's equal kernels the empty agent holds in any arrangement."""
    counts = range(len(session.kernels), 0, -1)
    return next((count for count in counts if some_arrangement_exists(session.kernels[:count], [agent])), 0)


@given(
    agents(min_size=1, max_size=4),
    st.integers(2, 6),
    st.sampled_from(({"cpu": "500m"}, {"cpu": 1}, {"gpu": 1}, {"fgpu": "0.5"}, {"fgpu": "1.5"}, {"mem": "512M"})),
)
def test_identical_kernels_lie_on_the_fewest_agents(known, size, resources):
    session = gang(size, **{"cpu": "250m", "mem": "64M", "shm": 0, **resources})
    snapshot = Snapshot(known, (session,), NOW)
    usable = [agent for agent in known if agent.takes_sessions and agent.resource_group == "default"]
    joined = [agent for agent in usable if agent.on_overlay] if snapshot.overlay_keeper else []
    counts = kernels_on(snapshot, session)
    if any(most_kernels(session, agent) == size for agent in usable):
        assert list(counts.values()) == [size]
        return
    held = sorted((most_kernels(session, agent) for agent in joined), reverse=True)
    fewest = next((number for number in range(1, len(held) + 1) if sum(held[:number]) >= size), 0)
    assert len(counts) == fewest
    assert sum(counts.values()) == (size if fewest else 0)


def test_four_kernels_of_one_gpu_lie_on_the_agent_that_has_four_free():
    known = [make_agent(f"a{gpus}", gpus=gpus, swarm="manager") for gpus in (2, 4)]
    assert placed_where(gang(4, gpu=1), *known) == {"a4": 4}
    assert placed_where(gang(5, gpu=1), *known) == {"a4": 4, "a2": 1}


def test_a_gang_goes_to_the_agent_that_it_fills_best():
    known = (make_agent("a1", cpus=16), make_agent("a2", cpus=4))
    assert placed_where(make_session(1, cpu=2, cluster_size=2), *known) == {"a2": 2}


def test_a_gang_is_spread_only_where_it_must_be_and_may():
    known = [make_agent(agent_id, cpus=2, swarm="manager") for agent_id in ("a1", "a2")]
    assert placed_where(gang(2), *known) == {"a1": 2}
    assert placed_where(gang(4), *known) == {"a1": 2, "a2": 2}
    assert placed_where(gang(4, cluster_mode="single-node"), *known) == {}


@pytest.mark.parametrize(
    ("changes", "slow"),
    [
        ({"state": AgentState.UNREACHABLE}, ()),
        ({"state": AgentState.LOST}, ()),
        ({"drain_reason": "disks"}, ()),
        ({}, ("a2",)),
    ],
)
def test_a_gang_goes_around_agents_that_take_no_sessions(changes, slow):
    known = [make_agent(agent_id, cpus=2, swarm="manager") for agent_id in ("a1", "a2", "a3")]
    known[1] = replace(known[1], **changes)
    assert placed_where(gang(4), *known, slow=slow) == {"a1": 2, "a3": 2}
    assert placed_where(gang(6), *known, slow=slow) == {}


def test_only_agents_that_the_overlay_reaches_share_a_gang():
    known = [make_agent(f"a{number}", cpus=2, swarm=swarm) for number, swarm in enumerate(("manager", "", "worker"))]
    assert placed_where(gang(4), *known) == {"a0": 2, "a2": 2}
    assert placed_where(gang(2), make_agent("a1", cpus=2)) == {"a1": 2}


def test_a_gang_in_need_of_several_agents_waits_while_no_manager_answers():
    manager = replace(make_agent("a1", cpus=2, swarm="manager"), state=AgentState.UNREACHABLE)
    workers = [make_agent(agent_id, cpus=2, swarm="worker") for agent_id in ("a2", "a3")]
    session = gang(4)
    wait = schedule(Snapshot((manager, *workers), (session,), NOW)).waits[session.id]
    assert wait.code is WaitCode.BUSY
    assert "no swarm manager answers" in wait.message
    assert placed_where(session, replace(manager, state=AgentState.ALIVE), *workers) == {"a1": 2, "a2": 2}


def test_a_drained_manager_still_keeps_overlays():
    manager = replace(make_agent("a1", cpus=2, swarm="manager"), drain_reason="disks")
    workers = [make_agent(agent_id, cpus=2, swarm="worker") for agent_id in ("a2", "a3")]
    assert placed_where(gang(4), manager, *workers) == {"a2": 2, "a3": 2}


def test_a_gang_that_only_an_overlay_could_hold_never_fits_without_one():
    known = tuple(make_agent(agent_id, cpus=2) for agent_id in ("a1", "a2"))
    session = gang(4)
    wait = schedule(Snapshot(known, (session,), NOW)).waits[session.id]
    assert wait.code is WaitCode.NEVER_FITS
    assert "no overlay network joins its agents" in wait.message


def test_a_gang_never_leaves_its_resource_group():
    groups = enumerate(("default", "gpu"))
    known = tuple(make_agent(f"a{n}", cpus=2, swarm="manager", resource_group=group) for n, group in groups)
    session = gang(3)
    assert schedule(Snapshot(known, (session,), NOW)).waits[session.id].code is WaitCode.NEVER_FITS
