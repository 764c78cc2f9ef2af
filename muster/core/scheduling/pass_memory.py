"""What one pass may take over from the one before: what has not changed is not worked out again."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import is_

from muster.core.agents.agent import Agent
from muster.core.model.plan import Plan
from muster.core.model.policy import PlacementPolicy
from muster.core.model.session import Kernel, Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait
from muster.core.scheduling.admission import moments
from muster.core.scheduling.future import end_of
from muster.core.scheduling.placement import Gang, PlacementState, Typical, gang_of
from muster.core.scheduling.reasons import obstacle
from muster.core.values.slots import Slots, total

_Kernels = dict[int, tuple[Kernel, ...]]
"""Kernels of sessions by the identity of the tuple, which lasts as long as it is here."""


@dataclass(slots=True)
class _Known:
    agents: Sequence[Agent]
    closed: Mapping[str, str]
    policy: PlacementPolicy
    mix: Sequence[Typical]
    kernels: _Kernels
    state: PlacementState
    impossible: dict[Gang, Wait | None]


@dataclass(frozen=True, slots=True)
class GroupAgents:
    """The agents of a group: what they have in all, and why which of them get no new sessions."""

    agents: Sequence[Agent]
    slow: frozenset[str]
    capacity: Slots
    closed: Mapping[str, str]


class _Requests:
    """How often each gang is requested in a group, kept up to date by the sessions that came and went."""

    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self._counts: Counter[Gang] = Counter()

    def of(self, sessions: Iterable[Session]) -> Mapping[Gang, int]:
        now = {id(session.kernels): session for session in sessions}
        before, counts = self._sessions, self._counts
        for key in now.keys() - before.keys():
            counts[gang_of(now[key], overlay=True)] += 1
        for key in before.keys() - now.keys():
            gang = gang_of(before[key], overlay=True)
            counts[gang] -= 1
            if not counts[gang]:
                del counts[gang]
        self._sessions = now
        return counts


@dataclass(frozen=True)
class _Decided:
    snapshot: Snapshot
    plan: Plan

    @cached_property
    def until(self) -> float:
        """When time alone makes a difference. It is worked out only once the next snapshot is otherwise the same."""
        return _next_change(self.snapshot)


class PassMemory:
    """A cache between passes. It changes only what decisions cost, not the decisions.

    Sessions and agents are the same when they are the same objects: the store gives what has not changed again.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._agents: dict[str, GroupAgents] = {}
        self._requests: dict[str, _Requests] = {}
        self._decided: _Decided | None = None

    def plan(self, snapshot: Snapshot) -> Plan | None:
        """Return the last pass's plan where only the time differs, and does not matter yet."""
        before = self._decided
        if before is None or before.snapshot.now > snapshot.now or not _is_the_same(before.snapshot, snapshot):
            return None
        return before.plan if snapshot.now < before.until else None

    def decided(self, snapshot: Snapshot, plan: Plan) -> None:
        """Record a pass's plan. Call it after each pass."""
        idle = not plan.placements and not plan.preemptions
        self._decided = _Decided(snapshot, plan) if idle else None

    def impossible(self, group: str) -> dict[Gang, Wait | None]:
        """Return what is known of gangs that could never start, or could, on the agents of the last `state` call."""
        return self._known[group].impossible

    def agents(self, group: str, agents: Sequence[Agent], snapshot: Snapshot) -> GroupAgents:
        """Return what the group's agents have, and which are closed."""
        known = self._agents.get(group)
        if known is None or known.slow != snapshot.slow or not _are_the_same(known.agents, agents):
            closed = {agent.id: cause for agent in agents if (cause := obstacle(agent, snapshot))}
            known = GroupAgents(agents, snapshot.slow, total(agent.capacity for agent in agents), closed)
            self._agents[group] = known
        return known

    def requests(self, group: str, sessions: Iterable[Session]) -> Mapping[Gang, int]:
        """Return how often the sessions request each gang."""
        return self._requests.setdefault(group, _Requests()).of(sessions)

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
        kernels = {id(session.kernels): session.kernels for session in placed}
        known = self._known.get(group)
        if known is None or not _are_the_same(known.agents, agents):
            state = PlacementState.of(agents, {}, policy, mix, closed)
            known = _Known(agents, closed, policy, mix, {}, state, {})
        state, before, impossible = known.state, known.kernels, known.impossible
        if (known.closed, known.policy, known.mix) != (closed, policy, mix):
            state = state.by(policy, mix, closed)
        gone = before.keys() - kernels.keys()
        new = kernels.keys() - before.keys()
        if gone:
            state.release(kernel for key in gone for kernel in before[key])
        if new:
            state.take(kernel for key in new for kernel in kernels[key])
        self._known[group] = _Known(agents, closed, policy, mix, kernels, state, impossible)
        return state.copy()


def _are_the_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return some is others or (len(some) == len(others) and all(map(is_, some, others)))


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
    if any(session.time_limit is not None and session.started_at is None for session in snapshot.placed):
        return snapshot.now
    ends = (end for session in snapshot.placed if (end := end_of(session, snapshot.now)) > snapshot.now)
    return min((*moments(snapshot), *ends), default=math.inf)
