"""Work one resource group's queue from its head to its end.

In the order that the policy gives. The first session that does not fit has capacity reserved for the earliest time at
which it can start. Those behind it may start now if that cannot delay it (EASY backfill: Lifka, JSSPP 1995; Mu'alem and
Feitelson, IEEE TPDS 2001).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING
from zlib import crc32

from muster.core.model.plan import Placement, Preemption
from muster.core.model.policy import QueueView
from muster.core.model.session import Allocation, Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait, WaitCode
from muster.core.scheduling.admission import Admission
from muster.core.scheduling.allocated import Allocated
from muster.core.scheduling.future import Future, Waiting, end_of, holder, starter
from muster.core.scheduling.pass_memory import GroupAgents, PassMemory
from muster.core.scheduling.placement import (
    Gang,
    PlacementState,
    Typical,
    gang_of,
    gang_of_size,
    on_one_agent,
    typical_requests,
)
from muster.core.scheduling.preemption import victims
from muster.core.scheduling.reasons import behind, busy, never_fits, no_agents, preempting
from muster.core.scheduling.repack import Placed, Repacker
from muster.core.values.slots import Slots, total

if TYPE_CHECKING:
    from muster.core.agents.agent import Agent

# Of so many sessions of a group at the most it is said when they start: what is farther off changes too often.
_ESTIMATED = 20
# With more sessions than these, only some of them say what is typical.
_SAMPLED = 16_384


@dataclass(slots=True)
class _Head:
    """The first session that does not fit.

    `start` is when it will (`math.inf`: unknown), `room` what others may use beyond that time; None where nothing is
    reserved for it.
    """

    session: Session
    start: float
    room: PlacementState | None


@dataclass(slots=True)
class _Alike:
    """A kind of sessions with the same request: what was found out for one holds for all.

    `request` is the gang where overlay networks are available. `full` once it does not fit: capacity only shrinks in a
    pass. `first` is the first of them that waits; `ahead` and `later` stand for the reasons of those that wait ahead of
    the head, for agents to be back or open and so for no other session, and of the others.
    """

    gang: Gang
    request: Gang
    closed: frozenset[str]
    total: Slots
    full: bool = False
    impossible: Wait | None = None
    first: Session | None = None
    ahead: Wait | None = None
    later: Wait | None = None


class GroupPass:
    """A pass over one resource group."""

    def __init__(
        self,
        snapshot: Snapshot,
        group: str,
        pending: Sequence[Session],
        admission: Admission,
        memory: PassMemory,
        *,
        explains: bool = True,
    ) -> None:
        self.preemptions: list[Preemption] = []
        self.reasons: dict[str, Wait] = {}
        self._snapshot = snapshot
        self._group = group
        self._pending = pending
        self._admission = admission
        self._memory = memory
        self._explains = explains
        self._policy = snapshot.policy.of(group)
        members = sorted((a for a in snapshot.agents if a.resource_group == group), key=lambda agent: agent.id)
        self._agents: dict[str, Agent] = {agent.id: agent for agent in members}
        self._overlay = snapshot.overlay_keeper is not None
        self._head: _Head | None = None
        self._alike: dict[tuple[Gang, frozenset[str]], _Alike] = {}
        self._by_identity: dict[int, _Alike] = {}
        self._first: list[Waiting] = []
        self._starting: list[Session] = []
        self._lying: list[Placed] = []
        self._repacker = Repacker()
        self._leaving: set[str] = set()
        self._passed: list[Session] = []

    def work(self) -> None:
        if not self._agents:
            self.reasons = dict.fromkeys((session.id for session in self._in_order()), no_agents(self._group))
            return
        for session in self._in_order():
            reason = self._tried(session)
            if reason is not None:
                self.reasons[session.id] = reason

    def grow(self) -> None:
        """Give elastic sessions that start more kernels, each as many as fit, the first in the queue first.

        Only what nobody else starts on is left then, and what is reserved for the head stays reserved.
        """
        for number, session in enumerate(self._starting):
            most = self._admission.more(session) if session.spare else 0
            if most:
                self._lying[number] = self._grown(session, self._lying[number], most)
                self._admission.admit_more(session, len(self._lying[number].allocations) - len(session.kernels))

    @property
    def placements(self) -> Iterator[Placement]:
        """Yield the placements; what is placed may be placed anew as long as the pass lasts."""
        return map(_placement, self._starting, self._lying)

    def _in_order(self) -> Iterator[Session]:
        by_priority: dict[int, list[Session]] = defaultdict(list)
        for session in self._pending:
            by_priority[session.spec.priority].append(session)
        for priority in sorted(by_priority, reverse=True):
            yield from self._policy.order(by_priority[priority], self._view)

    @cached_property
    def _placed(self) -> list[Session]:
        return [s for s in self._snapshot.placed if s.spec.resource_group == self._group]

    @cached_property
    def _known_agents(self) -> GroupAgents:
        return self._memory.agents(self._group, list(self._agents.values()), self._snapshot)

    @property
    def _capacity(self) -> Slots:
        return self._known_agents.capacity

    @cached_property
    def _allocated(self) -> Allocated:
        return Allocated(self._placed)

    @cached_property
    def _view(self) -> QueueView:
        snapshot = self._snapshot
        return QueueView(snapshot.now, self._capacity, self._allocated, snapshot.usage, snapshot.policy.shares)

    @cached_property
    def _state(self) -> PlacementState:
        known, here = self._known_agents, self._snapshot.placed
        return self._memory.state(self._group, known.agents, here, self._policy.placement, self._mix, known.closed)

    @cached_property
    def _empty_state(self) -> PlacementState:
        """Return the agents with nothing on them.

        By no policy of the site and no mix: what can never start does not depend on them, and is kept between passes.
        """
        return self._state.emptied()

    @cached_property
    def _mix(self) -> tuple[Typical, ...]:
        """Return the typical requests of this group's sessions: those that run and wait are its latest history."""
        sessions: Iterable[Session] = chain(self._placed, self._pending)
        most = len(self._placed) + len(self._pending)
        if most >= _SAMPLED:
            # By their ids, so that the order in which they are read has no bearing.
            some = (1 << (most // _SAMPLED).bit_length()) - 1
            sessions = (session for session in sessions if not crc32(session.id.encode()) & some)
        return typical_requests(self._memory.requests(self._group, sessions))

    def _tried(self, session: Session) -> Wait | None:
        """Start the session where that is possible; otherwise return why not.

        None also means that the reason follows at the end of the pass.
        """
        refusal = self._admission.refusal(session)
        if refusal is not None:
            return refusal
        alike = self._like(session)
        if not alike.full and (self._head is None or self._policy.backfill):
            allocations = self._place(session, alike)
            if allocations is None:
                allocations = self._repacked(alike)
            if allocations is not None:
                self._start(session, alike, allocations)
                return None
            alike.full = not self._state.fits(alike.gang, alike.closed)
        if alike.first is None:
            alike.impossible = self._impossible(alike.request)
        if alike.impossible is not None:
            return alike.impossible
        # An earlier session of this pass with the same request leads already, or none with it can.
        leads = self._lead(session, alike) if self._head is None and alike.first is None else None
        if alike.first is None:
            alike.first = session
        return leads or self._later(session, alike)

    def _later(self, session: Session, alike: _Alike) -> Wait:
        """Return what stands for the session's reason until the end of the pass."""
        if session.wait is not None and session.wait.passes:
            self._passed.append(session)
        if self._head is None:
            alike.ahead = alike.ahead or Wait(WaitCode.BUSY, "")
            return alike.ahead
        if len(self._first) < _ESTIMATED:
            self._first.append(Waiting(session, alike.gang, alike.closed))
        alike.later = alike.later or Wait(WaitCode.BUSY, "")
        return alike.later

    def _like(self, session: Session) -> _Alike:
        request = gang_of(session, overlay=True)
        closed = self._admission.closed_agents(session)
        # By identity first: most sessions share their request, and to hash it costs more than all else here.
        known = self._by_identity.get(id(request))
        if known is not None and known.request is request and known.closed is closed:
            return known
        alike = self._alike.get((request, closed))
        if alike is None:
            gang = request if self._overlay else on_one_agent(request)
            alike = self._alike[request, closed] = _Alike(gang, request, closed, total(request.slots))
        self._by_identity[id(request)] = alike
        return alike

    def _place(self, session: Session, alike: _Alike) -> tuple[Allocation, ...] | None:
        head = self._head
        if head is None or head.room is None:
            return self._state.place(alike.gang, alike.closed)
        over_in_time = end_of(session, self._snapshot.now) <= head.start < math.inf
        given, other = (self._state, head.room) if over_in_time else (head.room, self._state)
        allocations = given.place(alike.gang, alike.closed)
        if allocations is not None:
            other.take_as(given, alike.gang)
        return allocations

    def _repacked(self, alike: _Alike) -> tuple[Allocation, ...] | None:
        """Return allocations for a gang that does not fit, after what this pass has placed was placed anew.

        None where that does not help, and while capacity is reserved for the head. Nobody who waits already may fit
        then: they were first, and are not tried again.
        """
        if self._head is not None and self._head.room is not None:
            return None
        waiting = [
            (other.gang, other.closed) for other in self._alike.values() if other.full and other.first is not None
        ]
        moved = self._repacker.repacked(self._state, self._lying, alike.gang, alike.closed, waiting)
        if moved is None:
            return None
        self._lying = moved[:-1]
        return moved[-1].allocations

    def _start(self, session: Session, alike: _Alike, allocations: tuple[Allocation, ...]) -> None:
        self._starting.append(session)
        self._lying.append(Placed(alike.gang, alike.closed, allocations))
        self._admission.admit(session)
        self._allocated.add(session.owner, alike.total)

    def _grown(self, session: Session, lying: Placed, most: int) -> Placed:
        """Place a session that starts anew, with up to so many kernels more; return where it lies."""
        head, room = self._head, None if self._head is None else self._head.room
        given, others = self._state, [] if room is None else [room]
        if head is not None and room is not None:
            if head.start == math.inf:
                # What it has may be counted as the head's already.
                return lying
            if end_of(session, self._snapshot.now) > head.start:
                room.release(lying.kernels)
                given, others = room, [self._state]
        self._state.release(lying.kernels)
        least = len(session.kernels)
        gang = self._largest(given, session, lying.closed, least, least + most)
        allocations = None if gang is None else given.place(gang, lying.closed)
        if gang is None or allocations is None:
            for state in {id(each): each for each in (self._state, given)}.values():
                state.take(lying.kernels)
            return lying
        for other in others:
            other.take_as(given, gang)
        return Placed(gang, lying.closed, allocations)

    def _largest(
        self, state: PlacementState, session: Session, closed: frozenset[str], fits: int, most: int
    ) -> Gang | None:
        """Return the largest of its gangs that fits, of up to `most` kernels; None if no more than `fits` do."""
        largest = None
        middle = most
        while fits < most:
            gang = gang_of_size(session, middle, self._overlay)
            if state.fits(gang, closed):
                largest, fits = gang, middle
            else:
                most = middle - 1
            middle = (fits + most + 1) // 2
        return largest

    def _lead(self, session: Session, alike: _Alike) -> Wait | None:
        """Return the wait of the first session that does not fit, with capacity reserved or made for it.

        None when it waits for agents rather than for capacity: then it delays no other session.
        """
        now = self._snapshot.now
        start = self._future.start(alike.gang, alike.closed)
        if start is None:
            return None
        passes = min(passes_of(session) + 1, self._policy.reserve_after_passes)
        reason = self._busy(alike, session)
        leaving = self._preempted(session, alike) if self._policy.preemption and start.at > now else []
        if leaving:
            self._leaving = {other.id for other in leaving}
            start = self._future.start(alike.gang, alike.closed) or start
            reason = preempting(leaving)
        reserved = start.at < math.inf or passes >= self._policy.reserve_after_passes
        self._head = _Head(session, start.at, self._state.least(start.beside) if reserved else None)
        self._first.append(Waiting(session, alike.gang, alike.closed))
        if start.at == math.inf:
            return replace(reason, passes=passes, endless=self._endless)
        return replace(reason, passes=passes, estimated_start=start.at)

    def _preempted(self, session: Session, alike: _Alike) -> list[Session]:
        now = self._snapshot.now
        leaving = victims(session, alike.gang, alike.closed, self._state, self._placed, self._capacity, now)
        self.preemptions += [Preemption(other.id, session.id, _preempted_by(session, other.owner)) for other in leaving]
        return leaving

    @property
    def _future(self) -> Future:
        """Return the future with what this pass starts, and with what it preempts gone at once."""
        now = self._snapshot.now
        stays = [holder(session, now) for session in self._placed if session.id not in self._leaving]
        leaves = [holder(s, now)._replace(end=now) for s in self._placed if s.id in self._leaving]
        starts = [starter(s, lying, now) for s, lying in zip(self._starting, self._lying, strict=True)]
        return Future(self._state, [*stays, *leaves, *starts], now)

    def _impossible(self, request: Gang) -> Wait | None:
        known = self._memory.impossible(self._group)
        if request not in known:
            empty = self._empty_state
            known[request] = self._never_fits(request) if not empty.fits(request) and empty.excludes(request) else None
        return known[request]

    def _never_fits(self, request: Gang) -> Wait:
        joined = any(agent.on_overlay for agent in self._agents.values())
        measured = request if joined else on_one_agent(request)
        return never_fits(self._group, request, self._empty_state.misses(measured, beyond=True), self._agents)

    def _busy(self, alike: _Alike, first: Session) -> Wait:
        if not self._explains:
            return Wait(WaitCode.BUSY, "")
        misses = self._state.misses(alike.gang, alike.closed)
        reason = busy(self._group, alike.gang, misses, self._agents, no_overlay=alike.gang != alike.request)
        avoided = sorted(alike.closed.intersection(first.failed_on))
        if not avoided:
            return reason
        return replace(reason, message=f"{reason.message}; it keeps off {', '.join(avoided)}, where its launch failed")

    def explain(self) -> None:
        """Record the waits that are known only at the end of the pass; sessions with the same request share one."""
        if self._explains:
            explained = {
                id(later): self._explained(alike, alike.first, ahead=later is alike.ahead)
                for alike in self._alike.values()
                for later in (alike.ahead, alike.later)
                if later is not None and alike.first is not None
            }
            self.reasons = {key: explained.get(id(reason), reason) for key, reason in self.reasons.items()}
        for session in self._passed:
            self.reasons[session.id] = replace(self.reasons[session.id], passes=passes_of(session))
        if self._explains and self._head is not None and self._head.start < math.inf:
            self._estimate(self._head)

    def _explained(self, alike: _Alike, first: Session, *, ahead: bool) -> Wait:
        """Return why sessions of a kind wait, `first` among them; `ahead`: those that are ahead of the head."""
        if self._head is not None and not ahead:
            if not self._policy.backfill:
                return behind(self._head.session, delays=False)
            if self._state.fits(alike.gang, alike.closed):
                reason = behind(self._head.session, delays=True)
                return replace(reason, endless=self._endless) if self._head.start == math.inf else reason
        if alike.closed and self._state.fits(alike.gang):
            return self._admission.window(first)
        return self._busy(alike, first)

    @property
    def _endless(self) -> int:
        """Return how many sessions run in the group, or start in it now, without a time limit."""
        stays = (session for session in self._placed if session.id not in self._leaving)
        return sum(session.time_limit is None for session in (*stays, *self._starting))

    def _estimate(self, head: _Head) -> None:
        starts = self._future.estimates(self._first, backfill=self._policy.backfill)
        starts[head.session.id] = head.start
        for session_id, start in starts.items():
            self.reasons[session_id] = replace(self.reasons[session_id], estimated_start=start)


def _placement(session: Session, placed: Placed) -> Placement:
    by_kernel = {k.id: given for k, given in zip(session.possible_kernels, placed.allocations, strict=False)}
    return Placement(session.id, "single-node" if placed.agents == 1 else "multi-node", by_kernel)


def passes_of(session: Session) -> int:
    """Return in how many passes the session was the first that did not fit."""
    return session.wait.passes if session.wait else 0


def _preempted_by(session: Session, owner: str) -> str:
    """Return the reason in the preempted session's story, which names no other user's session to its owner."""
    who = session.name if session.owner == owner else "another user's session"
    return f"preempted by {who}, which has priority {session.spec.priority}"
