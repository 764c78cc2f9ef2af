"""What one pass may take over from the one before: what has not changed is not worked out again."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import is_

from muster.core.agents.agent import Agent
from muster.core.model.plan import Plan
from muster.core.model.policy import PlacementPolicy
from muster.core.model.session import Kernel, Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait
from muster.core.scheduling.admission import moments
from muster.core.scheduling.future import end_of
from muster.core.scheduling.placement import Gang, PlacementState, Typical


@dataclass(slots=True)
class _Known:
    agents: Sequence[Agent]
    closed: Mapping[str, str]
    policy: PlacementPolicy
    mix: Sequence[Typical]
    kernels: dict[str, tuple[Kernel, ...]]
    state: PlacementState
    impossible: dict[Gang, Wait | None]


@dataclass(frozen=True, slots=True)
class _Decided:
    snapshot: Snapshot
    plan: Plan
    until: float


class PassMemory:
    """A cache between passes. It changes only what decisions cost, not the decisions.

    Sessions and agents are the same when they are the same objects: the store gives what has not changed again.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._decided: _Decided | None = None

    def plan(self, snapshot: Snapshot) -> Plan | None:
        """Return the last pass's plan where only the time differs, and does not matter yet."""
        before = self._decided
        if before is None or not before.snapshot.now <= snapshot.now < before.until:
            return None
        return before.plan if _is_the_same(before.snapshot, snapshot) else None

    def decided(self, snapshot: Snapshot, plan: Plan) -> None:
        """Record a pass's plan. Call it after each pass."""
        idle = not plan.placements and not plan.preemptions
        self._decided = _Decided(snapshot, plan, _next_change(snapshot)) if idle else None

    def impossible(self, group: str) -> dict[Gang, Wait | None]:
        """Return what is known of gangs that could never start, or could, on the agents of the last `state` call."""
        return self._known[group].impossible

    def state(
        self,
        group: str,
        agents: Sequence[Agent],
        placed: Sequence[Session],
        policy: PlacementPolicy,
        mix: Sequence[Typical],
        closed: Mapping[str, str],
    ) -> PlacementState:
        """Return what `PlacementState.of` would make; the caller may change it."""
        kernels = {session.id: session.kernels for session in placed}
        known = self._known.get(group)
        impossible: dict[Gang, Wait | None] = {}
        if known is not None and _are_the_same(known.agents, agents):
            impossible = known.impossible
        else:
            known = None
        if known is None or (known.closed, known.policy, known.mix) != (closed, policy, mix):
            state = PlacementState.of(agents, {}, policy, mix, closed)
            before: dict[str, tuple[Kernel, ...]] = {}
        else:
            state, before = known.state, known.kernels
        gone = [old for session_id, old in before.items() if kernels.get(session_id) is not old]
        new = [held for session_id, held in kernels.items() if before.get(session_id) is not held]
        if gone:
            state.release(kernel for old in gone for kernel in old)
        if new:
            state.take(kernel for held in new for kernel in held)
        self._known[group] = _Known(agents, closed, policy, mix, kernels, state, impossible)
        return state.copy()


def _are_the_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _is_the_same(one: Snapshot, other: Snapshot) -> bool:
    return (
        _are_the_same(one.sessions, other.sessions)
        and _are_the_same(one.agents, other.agents)
        and (one.slow, one.policy, one.usage) == (other.slow, other.policy, other.usage)
        and not (one.reservations or other.reservations)
        and one.ended.keys() == other.ended.keys()
    )


def _next_change(snapshot: Snapshot) -> float:
    """Return when time alone makes a difference; `now` where it always does."""
    if any(session.spec.time_limit is not None and session.started_at is None for session in snapshot.placed):
        return snapshot.now
    ends = (end for session in snapshot.placed if (end := end_of(session, snapshot.now)) > snapshot.now)
    return min((*moments(snapshot), *ends), default=math.inf)
