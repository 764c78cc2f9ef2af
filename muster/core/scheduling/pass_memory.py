"""What one pass may take over from the one before: what has not changed is not worked out again."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import filterfalse, islice
from operator import attrgetter, is_
from typing import TypeVar

from muster.core.agents.agent import Agent
from muster.core.model.plan import Plan
from muster.core.model.policy import PlacementPolicy
from muster.core.model.session import Kernel, Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait
from muster.core.scheduling.admission import moments
from muster.core.scheduling.future import end_of
from muster.core.scheduling.moved_sessions import MovedSessions
from muster.core.scheduling.placement import Gang, PlacementState, Typical, gang_of
from muster.core.scheduling.plain_sessions import PlainSessions
from muster.core.scheduling.reasons import obstacle
from muster.core.values.slots import Slots, total

_Kernels = dict[int, tuple[Kernel, ...]]
"""Kernels of sessions by the identity of the tuple, which lasts as long as it is here."""
_kernels = attrgetter("kernels")
Kept = TypeVar("Kept")


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

    def of(self, sessions: Iterable[Session], plain: Mapping[int, Gang | None]) -> Mapping[Gang, int]:
        sessions = list(sessions)
        now = dict(zip(map(id, map(_kernels, sessions)), sessions, strict=True))
        before, counts = self._sessions, self._counts
        gone_keys, new_keys = _difference(before, now)
        new = [now[key] for key in new_keys]
        gangs = [plain.get(id(session)) or gang_of(session, overlay=True) for session in new]
        # By identity first: most share theirs, and to hash one costs more than all else here.
        shared = dict(zip(map(id, gangs), gangs, strict=True))
        for key, times in Counter(map(id, gangs)).items():
            counts[shared[key]] += times
        for key in gone_keys:
            gang = gang_of(before[key], overlay=True)
            counts[gang] -= 1
            if not counts[gang]:
                del counts[gang]
        self._sessions = now
        return counts


@dataclass
class _Decided:
    """A plan that starts nothing; `agents` are those of the last snapshot that it held for."""

    snapshot: Snapshot
    plan: Plan
    agents: Sequence[Agent]

    @cached_property
    def until(self) -> float:
        """When time alone makes a difference. It is worked out only once the next snapshot is otherwise the same."""
        return _next_change(self.snapshot)

    def is_of(self, other: Snapshot) -> bool:
        """Return whether nothing but the time differs for a decision."""
        one = self.snapshot
        return (
            _are_the_same(one.sessions, other.sessions)
            and _decide_alike(self.agents, other.agents)
            and (one.slow, one.policy, one.usage) == (other.slow, other.policy, other.usage)
            and not (one.reservations or other.reservations)
            and one.ended.keys() == other.ended.keys()
        )


class PassMemory:
    """A cache between passes. It changes only what decisions cost, not the decisions.

    Sessions are the same when they are the same objects: the store gives what has not changed again. Agents are when no
    decision can tell them apart: each observation gives other values of all that answer.
    """

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._agents: dict[str, GroupAgents] = {}
        self._members: dict[str, tuple[Sequence[Agent], dict[str, Agent]]] = {}
        self._requests: dict[str, _Requests] = {}
        self._moved: dict[str, MovedSessions] = {}
        self._plain: dict[str, PlainSessions] = {}
        self._decided: _Decided | None = None

    def plan(self, snapshot: Snapshot) -> Plan | None:
        """Return the last pass's plan where only the time differs, and does not matter yet."""
        before = self._decided
        if before is None or before.snapshot.now > snapshot.now or not before.is_of(snapshot):
            return None
        before.agents = snapshot.agents
        return before.plan if snapshot.now < before.until else None

    def decided(self, snapshot: Snapshot, plan: Plan) -> None:
        """Record a pass's plan. Call it after each pass."""
        idle = not plan.placements and not plan.preemptions
        self._decided = _Decided(snapshot, plan, snapshot.agents) if idle else None

    def impossible(self, group: str) -> dict[Gang, Wait | None]:
        """Return what is known of gangs that could never start, or could, on the agents of the last `state` call."""
        return self._known[group].impossible

    def members(self, group: str, snapshot: Snapshot) -> Mapping[str, Agent]:
        """Return the group's agents by their ids, and in the order of these."""
        known = self._members.get(group)
        if known is None or not _are_the_same(known[0], snapshot.agents):
            members = sorted((a for a in snapshot.agents if a.resource_group == group), key=attrgetter("id"))
            known = self._members[group] = snapshot.agents, {agent.id: agent for agent in members}
        return known[1]

    def agents(self, group: str, agents: Sequence[Agent], snapshot: Snapshot) -> GroupAgents:
        """Return what the group's agents have, and which are closed."""
        known = self._agents.get(group)
        if known is None or known.slow != snapshot.slow or not _decide_alike(known.agents, agents):
            closed = {agent.id: cause for agent in agents if (cause := obstacle(agent, snapshot))}
            known = GroupAgents(agents, snapshot.slow, total(agent.capacity for agent in agents), closed)
        # Those of now, so that the next pass finds most of them by their identity.
        known = self._agents[group] = replace(known, agents=agents)
        return known

    def moved_for(self, group: str, sessions: Sequence[Session]) -> frozenset[str]:
        """Return the ids of the sessions for which some of these of the group were moved."""
        return self._moved.setdefault(group, MovedSessions()).ahead(sessions)

    def plain(self, group: str, pending: Sequence[Session]) -> Mapping[int, Gang | None]:
        """Return by identity of the group's pending sessions what those request that only capacity keeps waiting."""
        return self._plain.setdefault(group, PlainSessions()).of(pending)

    def requests(self, group: str, sessions: Iterable[Session], plain: Mapping[int, Gang | None]) -> Mapping[Gang, int]:
        """Return how often the sessions request each gang; `plain` are gangs that are known, as `plain` returns."""
        return self._requests.setdefault(group, _Requests()).of(sessions, plain)

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
        every = list(map(_kernels, placed))
        kernels = dict(zip(map(id, every), every, strict=True))
        known = self._known.get(group)
        if known is None or not _decide_alike(known.agents, agents):
            state = PlacementState.of(agents, {}, policy, mix, closed)
            known = _Known(agents, closed, policy, mix, {}, state, {})
        state, before, impossible = known.state, known.kernels, known.impossible
        if (known.closed, known.policy, known.mix) != (closed, policy, mix):
            state = state.by(policy, mix, closed)
        gone, new = _difference(before, kernels)
        if gone:
            state.release(kernel for key in gone for kernel in before[key])
        if new:
            state.take(kernel for key in new for kernel in kernels[key])
        self._known[group] = _Known(agents, closed, policy, mix, kernels, state, impossible)
        return state.copy()


def _difference(before: dict[int, Kept], now: dict[int, Kept]) -> tuple[list[int], list[int]]:
    """Return the keys that are gone, and those that are new. There are few of them, among thousands.

    How many are new follows from how many are gone. Most of them come last, so the search begins there.
    """
    gone = list(filterfalse(now.__contains__, before))
    count = len(now) - len(before) + len(gone)
    new = list(islice(filterfalse(before.__contains__, reversed(now)), count))
    return gone, new[::-1]


def _are_the_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return some is others or (len(some) == len(others) and all(map(is_, some, others)))


def _decide_alike(some: Sequence[Agent], others: Sequence[Agent]) -> bool:
    if some is others:
        return True
    return len(some) == len(others) and all(
        one is other or one.decides_like(other) for one, other in zip(some, others, strict=True)
    )


def _next_change(snapshot: Snapshot) -> float:
    """Return when time alone makes a difference; `now` where it always does."""
    if any(session.time_limit is not None and session.started_at is None for session in snapshot.placed):
        return snapshot.now
    ends = (end for session in snapshot.placed if (end := end_of(session, snapshot.now)) > snapshot.now)
    return min((*moments(snapshot), *ends), default=math.inf)
