"""What one pass may take over from the one before: what has not changed is not worked out again."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from muster.core.agents.agent import Agent
from muster.core.model.plan import Plan
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.admission import moments
from muster.core.scheduling.defragment import moves_from
from muster.core.scheduling.future import end_of
from muster.core.scheduling.memory.difference import are_the_same, difference
from muster.core.scheduling.memory.group_memory import GroupMemory, decide_alike


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
            are_the_same(one.sessions, other.sessions)
            and decide_alike(self.agents, other.agents)
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
        self._groups: dict[str, GroupMemory] = {}
        self._placed: Sequence[Session] = ()
        self._decided: _Decided | None = None

    def plan(self, snapshot: Snapshot) -> Plan | None:
        """Return the last pass's plan where only the time differs, and does not matter yet."""
        before = self._decided
        if before is None or before.snapshot.now > snapshot.now or not before.is_of(snapshot):
            return None
        before.agents = snapshot.agents
        return before.plan if snapshot.now < before.until else None

    def begin(self, snapshot: Snapshot, queues: Mapping[str, Sequence[Session]]) -> Mapping[str, GroupMemory]:
        """Learn which sessions came and went, and return the memory of each group. Call it first in each pass.

        `queues` are the pending sessions of each group of which some wait.
        """
        gone, new = difference(self._placed, snapshot.placed)
        for memory in self._groups.values():
            memory.change_placed(gone, new)
        self._placed = snapshot.placed
        for group, pending in queues.items():
            if group not in self._groups:
                self._groups[group] = GroupMemory(group)
                self._groups[group].change_placed((), snapshot.placed)
            self._groups[group].change_pending(pending)
        return self._groups

    def decided(self, snapshot: Snapshot, plan: Plan) -> None:
        """Record a pass's plan. Call it after each pass."""
        idle = not plan.placements and not plan.preemptions
        self._decided = _Decided(snapshot, plan, snapshot.agents) if idle else None


def _next_change(snapshot: Snapshot) -> float:
    """Return when time alone makes a difference; `now` where it always does."""
    if any(session.time_limit is not None and session.started_at is None for session in snapshot.placed):
        return snapshot.now
    ends = (end for session in snapshot.placed if (end := end_of(session, snapshot.now)) > snapshot.now)
    return min((*moments(snapshot), *ends, *_moves(snapshot)), default=math.inf)


def _moves(snapshot: Snapshot) -> Iterator[float]:
    """Yield later times from which on sessions may be moved that were queued again not long ago."""
    moved = (s for s in snapshot.placed if s.requeues and snapshot.policy.of(s.spec.resource_group).defragment)
    return (at for session in moved if (at := moves_from(session)) is not None and at > snapshot.now)
