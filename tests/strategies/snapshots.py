"""Strategies for what the scheduler decides on: agents with the sessions that run and wait there."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from muster.core.agents.agent import Agent
from muster.core.model.policy import GroupPolicy, SchedulingPolicy
from muster.core.model.session import (
    PLACED,
    Allocation,
    LaunchStep,
    Session,
    SessionState,
    kernel_count,
    kernels_of,
    spare_kernels_of,
)
from muster.core.model.snapshot import Snapshot
from tests.strategies.agents import agents, joined_agent, make_agent
from tests.strategies.capacity import Ledger, share_choices
from tests.strategies.sessions import first_for, make_session, placed_on, uneven
from tests.strategies.specs import gang_specs
from tests.strategies.values import GIB, NOW, new_id

_PLACED = tuple(sorted(PLACED))
_STEPS = tuple(LaunchStep)
_RETRY_AT = (None, None, None, None, NOW - 1, NOW + 5)
_WAITS = (None, None, first_for(1), first_for(3))


@st.composite
def group_policies(draw: st.DrawFn) -> GroupPolicy:
    return GroupPolicy(
        backfill=draw(st.booleans()),
        reserve_after_passes=draw(st.integers(1, 3)),
        preemption=draw(st.booleans()),
    )


def _maybe_placed(draw: st.DrawFn, session: Session, known: Sequence[Agent], ledger: Ledger) -> Session | None:
    """Return the session placed anywhere that has room for it, which need not be the scheduler's choice."""
    kernels = []
    trial = Ledger(
        dict(ledger.cpu), dict(ledger.mem), {agent: dict(gpus) for agent, gpus in ledger.gpus.items()}, ledger.whole
    )
    group = [agent for agent in known if agent.resource_group == session.spec.resource_group]
    if not group:
        return None
    here = draw(st.sampled_from(group))
    if session.spec.is_elastic:
        session = session.of_size(draw(st.integers(*session.spec.sizes)))
    for kernel in session.kernels:
        agent = draw(st.sampled_from(group)) if session.spec.cluster_mode == "multi-node" else here
        choices = share_choices(agent, kernel.slots, trial.gpus[agent.id])
        if not choices:
            return None
        placed = replace(kernel, allocation=Allocation(agent.id, draw(st.sampled_from(choices))))
        trial.charge(placed)
        if trial.overdrawn:
            return None
        kernels.append(placed)
    ledger.cpu, ledger.mem, ledger.gpus = trial.cpu, trial.mem, trial.gpus
    launched = replace(session, kernels=tuple(kernels), generation=7)
    mode = "single-node" if len(launched.agents) == 1 else "multi-node"
    state = draw(st.sampled_from(_PLACED))
    step = draw(st.sampled_from(_STEPS)) if state is SessionState.PREPARING else None
    started_at = NOW - draw(st.integers(0, 500)) if state in {SessionState.RUNNING, SessionState.TERMINATING} else None
    return replace(launched, placed_mode=mode, state=state, step=step, started_at=started_at, reason="placed")


@st.composite
def snapshots(draw: st.DrawFn, *, max_sessions: int = 6, never_spread: bool = False) -> Snapshot:
    """Draw agents, sessions that run on them, and sessions that wait. Allocations never exceed capacities."""
    known = draw(agents())
    ledger = Ledger.of(known)
    sessions = []
    for number in range(1, draw(st.integers(0, max_sessions)) + 1):
        spec = draw(gang_specs(never_spread=never_spread)).model_copy(update={"name": f"s{number}"})
        ids = tuple(new_id(number, kernel) for kernel in range(kernel_count(spec)))
        at = NOW - draw(st.integers(0, 3))
        session = Session(ids[0], spec.name, "ada", spec, kernels_of(spec, ids, spec.image), at)
        session = replace(session, spare=spare_kernels_of(spec, ids, spec.image))
        placed = _maybe_placed(draw, session, known, ledger) if draw(st.booleans()) else None
        retry_at = draw(st.sampled_from(_RETRY_AT))
        wait = draw(st.sampled_from(_WAITS))
        sessions.append(placed or replace(session, retry_at=retry_at, wait=wait))
    slow = draw(st.sets(st.sampled_from([agent.id for agent in known]), max_size=1)) if known else ()
    policy = SchedulingPolicy(draw(group_policies()))
    return Snapshot(known, tuple(sessions), NOW, frozenset(slow) if draw(st.booleans()) else frozenset(), policy)


@st.composite
def limited_queues(draw: st.DrawFn) -> Snapshot:
    """Draw sessions that run, and some that wait, all with time limits."""

    def shape() -> dict[str, Any]:
        return {"cpu": draw(st.integers(1, 4)), "time_limit": draw(st.sampled_from((600, 1200, 1800, 3600))), "shm": 0}

    runs = []
    for number, agent in enumerate(draw(st.lists(st.sampled_from(("a1", "a2")), max_size=4, unique=True))):
        runs.append(placed_on(make_session(number, **shape()), agent))
    waiting = [make_session(number, **shape()) for number in range(10, 10 + draw(st.integers(1, 7)))]
    policy = SchedulingPolicy(GroupPolicy(backfill=draw(st.booleans())))
    agents = (make_agent("a1", cpus=4), make_agent("a2", cpus=4))
    return Snapshot(agents, (*runs, *waiting), NOW, policy=policy)


@st.composite
def uneven_gangs(draw: st.DrawFn) -> tuple[tuple[Agent, ...], Session]:
    """Draw a few agents that an overlay joins, and a gang that asks for about as much as they have."""
    agents = tuple(
        joined_agent(
            f"a{number}",
            cpus=draw(st.sampled_from((4, 6, 8))),
            mem=draw(st.sampled_from((8, 16, 32))) * GIB,
            gpus=draw(st.sampled_from((0, 1, 2))),
            units_per_gpu=draw(st.sampled_from((1, 1, 0))),
        )
        for number in range(draw(st.integers(2, 3)))
    )

    def resources() -> dict[str, Any]:
        kind = draw(st.sampled_from(("none", "none", "gpu", "fgpu")))
        return {
            "cpu": draw(st.sampled_from((1, 2, 3, 4, 6))),
            "mem": f"{draw(st.sampled_from((1, 4, 8, 12)))}G",
            "gpu": draw(st.integers(1, 2)) if kind == "gpu" else 0,
            "fgpu": draw(st.sampled_from((0.3, 0.5, 0.7, 1, 1.5))) if kind == "fgpu" else 0,
        }

    roles = [{"replicas": draw(st.integers(1, 2)), **resources()} for _ in range(draw(st.integers(1, 2)))]
    return agents, uneven(*roles, **resources())
