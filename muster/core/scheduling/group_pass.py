"""Work one resource group's queue from its head to its end.

In the order that the policy gives. The first session that does not fit has capacity reserved for the earliest time at
which it can start. Those behind it may start now if that cannot delay it (EASY backfill: Lifka, JSSPP 1995; Mu'alem and
Feitelson, IEEE TPDS 2001).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter

from muster.core.model.plan import Placement, Preemption
from muster.core.model.policy import QueueView
from muster.core.model.session import Allocation, Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait, WaitCode
from muster.core.scheduling.admission import Admission
from muster.core.scheduling.allocated import Allocated
from muster.core.scheduling.defragment import Movable, in_line, may_move, moves
from muster.core.scheduling.elastic import largest_gang
from muster.core.scheduling.future import Future, Waiting, end_of, gone_at, starter
from muster.core.scheduling.group import Group
from muster.core.scheduling.kinds import Kind, Kinds, answers_of, left_open, stretch
from muster.core.scheduling.memory.group_memory import GroupMemory
from muster.core.scheduling.placement import Gang, PlacementState, gang_of
from muster.core.scheduling.preemption import victims
from muster.core.scheduling.queue_order import batches
from muster.core.scheduling.reasons import (
    behind,
    moving,
    no_agents,
    preempted_by,
    preempting,
)
from muster.core.scheduling.repack import Ahead, Placed, Repacker, placed_each, placements
from muster.core.scheduling.room import Room

# Of so many sessions of a group at the most it is said when they start: what is farther off changes too often.
_ESTIMATED = 20
_id, _owner = attrgetter("id"), attrgetter("owner")
_gang_of, _closed_of, _total_of = attrgetter("gang"), attrgetter("closed"), attrgetter("total")


@dataclass(slots=True)
class _Head:
    """The first session that does not fit.

    `start` is when it will (`math.inf`: unknown), `room` what others may use; None where nothing is reserved for it.
    `estimated` is `start` if no agents are closed to it by then: otherwise when it starts on others, None if unknown.
    """

    session: Session
    start: float
    room: Room | None
    estimated: float | None


class GroupPass:
    """A pass over one resource group."""

    def __init__(
        self,
        snapshot: Snapshot,
        group: str,
        pending: Sequence[Session],
        admission: Admission,
        memory: GroupMemory,
        *,
        explains: bool = True,
    ) -> None:
        self.preemptions: list[Preemption] = []
        self.reasons: dict[str, Wait] = {}
        self._snapshot = snapshot
        self._group = Group(group, snapshot, memory, is_bounded=admission.is_bounded)
        self._pending = pending
        self._admission = admission
        self._explains = explains
        self._policy = self._group.policy
        self._overlay = snapshot.overlay_keeper is not None
        self._head: _Head | None = None
        self._kinds = Kinds(admission, overlay=self._overlay)
        self._first: list[Waiting] = []
        self._starting: list[Session] = []
        self._lying: list[Placed] = []
        self._repacker = Repacker()
        self._ahead = Ahead()
        self._leaving: dict[str, float] = {}
        self._passed: list[Session] = []

    def work(self) -> None:
        if not self._group.agents:
            in_order = chain.from_iterable(self._batches())
            self.reasons = dict.fromkeys((session.id for session in in_order), no_agents(self._group.name))
            return
        for sessions in self._batches():
            if len(sessions) == 1:
                self._try(sessions[0])
            else:
                self._try_each(sessions)

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
    def placements(self) -> list[Placement]:
        """Return the placements; what is placed may be placed anew as long as the pass lasts."""
        return placements(self._starting, self._lying)

    def _batches(self) -> Iterator[Sequence[Session]]:
        """Yield the queue in its order; several sessions together where their order is fixed beforehand."""
        first = self._first_in_line()
        yield from ([session] for session in first)
        yield from batches(self._pending, {session.id for session in first}, self._policy.order, self._view)

    def _first_in_line(self) -> list[Session]:
        """Return those for which others were moved, and then the moved ones: they were shown to fit."""
        if not self._group.moved_for:
            return []
        ahead = self._group.moved_for
        heads = in_line(session for session in self._pending if session.id in ahead and session.moved_for is None)
        return [*heads, *in_line(session for session in self._pending if session.moved_for is not None)]

    @cached_property
    def _allocated(self) -> Allocated:
        return Allocated(self._group.placed.all)

    @cached_property
    def _view(self) -> QueueView:
        snapshot = self._snapshot
        return QueueView(snapshot.now, self._group.capacity, self._allocated, snapshot.usage, snapshot.policy.shares)

    def _try_each(self, sessions: Sequence[Session]) -> None:
        """Try sessions one after the other. What many of them have in common costs little: docs/benchmarks.md."""
        kinds = self._kinds.of_plain(list(map(self._group.plain.get, map(id, sessions))))
        answers = answers_of(kinds)
        if answers is not None:
            self.reasons.update(zip(map(_id, sessions), answers, strict=True))
            return
        places, position = left_open(kinds), 0
        while position < len(sessions):
            alone = self._head is not None and not self._policy.backfill
            chosen, end = stretch(kinds, places, position, 0 if alone else len(sessions))
            placed = self._start_each([sessions[n] for n in chosen], [kind for n in chosen if (kind := kinds[n])])
            if placed < len(chosen):
                end = chosen[placed]
            for session, kind in zip(sessions[position:end], kinds[position:end], strict=True):
                if kind is not None and kind.full:
                    self.reasons[session.id] = kind.answer or self._answer(session, kind)
            if end < len(sessions):
                session, kind = sessions[end], kinds[end]
                self._try(session, kind)
                if kind is not None and placed < len(chosen):
                    kind.alone = not kind.full
            position = end + 1

    def _answer(self, session: Session, kind: Kind) -> Wait:
        """Return what a plain session waits for that is of a full kind; keep it if it holds for all that follow."""
        reason = kind.impossible or self._later(session, kind)
        if reason is kind.impossible or (self._head is not None and len(self._first) >= _ESTIMATED):
            kind.answer = reason
        return reason

    def _start_each(self, sessions: Sequence[Session], kinds: Sequence[Kind]) -> int:
        """Start as many of the sessions in turn as `place_each` finds places for; return how many."""
        if not sessions:
            return 0
        gangs = list(map(_gang_of, kinds))
        if self._head is None or self._head.room is None:
            given = self._group.state.place_each(gangs)
        else:
            in_time = [self._ends_in_time(session, self._head) for session in sessions]
            given = self._head.room.place_each(gangs, in_time)
        count = len(given)
        sessions, kinds = sessions[:count], kinds[:count]
        self._starting += sessions
        self._lying += placed_each(map(_gang_of, kinds), map(_closed_of, kinds), given)
        self._allocated.add_each(zip(map(_owner, sessions), map(_total_of, kinds), strict=True))
        return count

    def _try(self, session: Session, plain: Kind | None = None) -> None:
        """Try a session; `plain` is its kind where it is a plain one."""
        reason = self._tried(session, plain)
        if reason is not None:
            self.reasons[session.id] = reason

    def _tried(self, session: Session, plain: Kind | None) -> Wait | None:
        """Start the session where that is possible; otherwise return why not.

        None also means that the reason follows at the end of the pass.
        """
        refusal = self._admission.refusal(session)
        if refusal is not None:
            return refusal
        kind = plain or self._kinds.of(session)
        if self._head is not None and not self._policy.backfill:
            kind.full = True
        if not kind.full:
            allocations = self._place(session, kind)
            if allocations is None:
                allocations = self._repacked(kind)
            if allocations is not None:
                self._start(session, kind, allocations)
                return None
            kind.full = not self._group.state.fits(kind.gang, kind.closed)
        if kind.first is None:
            kind.impossible = self._group.impossible(kind.request)
        if kind.impossible is not None:
            return kind.impossible
        # An earlier session of this pass with the same request leads already, or none with it can.
        leads = self._lead(session, kind) if self._head is None and kind.first is None else None
        if kind.first is None:
            kind.first = session
        if kind.full:
            self._ahead.add(kind.gang, kind.closed)
        return leads or self._later(session, kind)

    def _later(self, session: Session, kind: Kind) -> Wait:
        """Return what stands for the session's reason until the end of the pass."""
        if session.wait is not None and session.wait.passes:
            self._passed.append(session)
        if self._head is not None and len(self._first) < _ESTIMATED:
            self._first.append(Waiting(session, kind.gang, kind.closed))
        causes = self._admission.closed_agents(session) if kind.closed else kind.closed
        return kind.wait_of(session, causes, ahead=self._head is None)

    def _place(self, session: Session, kind: Kind) -> tuple[Allocation, ...] | None:
        head = self._head
        if head is None or head.room is None:
            return self._group.state.place(kind.gang, kind.closed)
        return head.room.place(kind.gang, kind.closed, in_time=self._ends_in_time(session, head))

    def _ends_in_time(self, session: Session, head: _Head) -> bool:
        """Return whether a session that starts now has ended when the head starts."""
        return end_of(session, self._snapshot.now) <= head.start < math.inf

    def _repacked(self, kind: Kind) -> tuple[Allocation, ...] | None:
        """Return allocations for a gang that does not fit, after what this pass has placed was placed anew.

        None where that does not help, and while capacity is reserved for the head. Nobody who waits already may fit
        then: they were first, and are not tried again.
        """
        if self._head is not None and self._head.room is not None:
            return None
        moved = self._repacker.repacked(self._group.state, self._lying, kind.gang, kind.closed, self._ahead)
        if moved is None:
            return None
        self._lying = moved[:-1]
        return moved[-1].allocations

    def _start(self, session: Session, kind: Kind, allocations: tuple[Allocation, ...]) -> None:
        self._starting.append(session)
        self._lying.append(Placed(kind.gang, kind.closed, allocations))
        self._admission.admit(session)
        self._allocated.add(session.owner, kind.total)

    def _grown(self, session: Session, lying: Placed, most: int) -> Placed:
        """Place a session that starts anew, with up to so many kernels more; return where it lies."""
        head, state = self._head, self._group.state
        kernels, least = tuple(lying.kernels), len(session.kernels)

        def largest(given: PlacementState) -> Gang | None:
            return largest_gang(given, session, lying.closed, least, least + most, overlay=self._overlay)

        if head is None or head.room is None:
            state.release(kernels)
            gang = largest(state)
            allocations = None if gang is None else state.place(gang, lying.closed)
            if allocations is None:
                state.take(kernels)
        elif head.start == math.inf:
            # What it has may be counted as the head's already.
            return lying
        else:
            room, in_time = head.room, self._ends_in_time(session, head)
            room.release(kernels, in_time=in_time)
            gang = largest(room.given(in_time=in_time))
            allocations = None if gang is None else room.place(gang, lying.closed, in_time=in_time)
            if allocations is None:
                room.take(kernels, in_time=in_time)
        return lying if gang is None or allocations is None else Placed(gang, lying.closed, allocations)

    def _lead(self, session: Session, kind: Kind) -> Wait | None:
        """Return the wait of the first session that does not fit, with capacity reserved or made for it.

        None when it waits for agents rather than for capacity: then it delays no other session.
        """
        now = self._snapshot.now
        start = self._future.start(kind.gang, kind.closed)
        if start is None:
            return None
        passes = min(passes_of(session) + 1, self._policy.reserve_after_passes)
        reason = self._busy(kind, session)
        leaving = self._preempted(session, kind) if self._policy.preemption and start.at > now else []
        if leaving:
            self._leaving = {other.id: gone_at(other, now) for other in leaving}
            start = self._future.start(kind.gang, kind.closed) or start
            reason = preempting(leaving)
        is_under_way = session.id in self._group.moved_for
        others = self._group.placed.all if is_under_way else ()
        moved = [self._movable(other) for other in in_line(other for other in others if other.moved_for == session.id)]
        if self._policy.defragment and start.at > now and not leaving and not is_under_way:
            moved = self._moved(session, kind, start.at)
            if moved:
                self._leaving = {each.session.id: gone_at(each.session, now) for each in moved}
                start = self._future.start(kind.gang, kind.closed) or start
                reason = moving([each.session for each in moved])
        for each in moved:
            # Where they start anew is kept for them.
            start.beside.place(each.gang, each.closed)
        reserved = start.at < math.inf or passes >= self._policy.reserve_after_passes
        waiting = Waiting(session, kind.gang, kind.closed)
        estimated = self._estimated(waiting, start.at)
        self._head = _Head(session, start.at, Room(self._group.state, start.beside) if reserved else None, estimated)
        self._first.append(waiting)
        if start.at == math.inf:
            return replace(reason, passes=passes, endless=self._endless)
        return replace(reason, passes=passes, estimated_start=estimated)

    def _estimated(self, waiting: Waiting, at: float) -> float | None:
        """Return when the head starts, which would at that time if the agents that are open now stay open."""
        closed_at = self._admission.closed_at
        if at < math.inf and not closed_at(waiting.session, at) <= waiting.closed:
            start = self._future.open_start(waiting, closed_at)
            at = math.inf if start is None else start.at
        return at if at < math.inf else None

    def _preempted(self, session: Session, kind: Kind) -> list[Session]:
        now = self._snapshot.now
        group = self._group
        leaving = victims(session, kind.gang, kind.closed, group.state, group.placed.all, group.capacity, now)
        self.preemptions += [Preemption(other.id, session.id, preempted_by(session, other.owner)) for other in leaving]
        return leaving

    def _moved(self, session: Session, kind: Kind, start: float) -> list[Movable]:
        """Return restartable sessions to move for the head, whose move loses less time than it would wait."""
        now = self._snapshot.now
        movable = [self._movable(other) for other in self._group.placed.all if may_move(other, session, now)]
        moved = moves(kind.gang, kind.closed, self._group.state, movable, self._group.capacity, now, start - now)
        for each in moved:
            who = session.name if session.owner == each.session.owner else "another user's session"
            message = f"starts anew elsewhere, since {who} fits in its place"
            self.preemptions.append(Preemption(each.session.id, session.id, message, moves=True))
        return moved

    def _movable(self, session: Session) -> Movable:
        waiting = session.of_size(None) if session.spec.is_elastic else session
        return Movable(session, gang_of(waiting, overlay=self._overlay), self._admission.closed_agents(session))

    @property
    def _future(self) -> Future:
        """Return the future with what this pass starts, and with what it preempts gone when that may be."""
        now = self._snapshot.now
        holders = self._group.placed.holders(now)
        if self._leaving:
            holders = [each._replace(end=self._leaving.get(each.session_id, each.end)) for each in holders]
        starts = [starter(s, lying, now) for s, lying in zip(self._starting, self._lying, strict=True)]
        return Future(self._group.state, [*holders, *starts], now)

    def _busy(self, kind: Kind, first: Session) -> Wait:
        return self._group.busy(kind, first) if self._explains else Wait(WaitCode.BUSY, "")

    def explain(self) -> None:
        """Record the waits that are known only at the end of the pass; sessions with the same request share one."""
        if self._explains:
            explained = {
                id(wait): self._explained(kind, first, ahead=ahead)
                for kind in self._kinds.all
                for (ahead, _, _), (wait, first) in kind.waits.items()
            }
            reasons = self.reasons.values()
            self.reasons = dict(zip(self.reasons, map(explained.get, map(id, reasons), reasons), strict=True))
        for session in self._passed:
            self.reasons[session.id] = replace(self.reasons[session.id], passes=passes_of(session))
        if self._explains and self._head is not None and self._head.start < math.inf:
            self._estimate(self._head)

    def _explained(self, kind: Kind, first: Session, *, ahead: bool) -> Wait:
        """Return why sessions of a kind wait, `first` among them; `ahead`: those that are ahead of the head."""
        if self._head is not None and not ahead:
            if not self._policy.backfill:
                return behind(self._head.session, delays=False)
            if self._group.state.fits(kind.gang, kind.closed):
                reason = behind(self._head.session, delays=True)
                return replace(reason, endless=self._endless) if self._head.start == math.inf else reason
        if kind.closed and self._group.state.fits(kind.gang):
            reason = self._admission.window(first)
            return replace(reason, until=None) if self._group.could_hold(kind.gang, kind.closed) else reason
        return self._busy(kind, first)

    @property
    def _endless(self) -> int:
        """Return how many sessions run in the group, or start in it now, without a time limit."""
        placed = self._group.placed
        leaving = (session for session in (placed.all if self._leaving else ()) if session.id in self._leaving)
        starting = sum(session.time_limit is None for session in self._starting)
        return placed.endless - sum(session.time_limit is None for session in leaving) + starting

    def _estimate(self, head: _Head) -> None:
        starts: dict[str, float | None] = {}
        starts |= self._future.estimates(self._first, self._admission.closed_at, backfill=self._policy.backfill)
        starts[head.session.id] = head.estimated
        for session_id, start in starts.items():
            self.reasons[session_id] = replace(self.reasons[session_id], estimated_start=start)


def passes_of(session: Session) -> int:
    """Return in how many passes the session was the first that did not fit."""
    return session.wait.passes if session.wait else 0
