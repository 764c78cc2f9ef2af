"""When capacity of a group becomes free, as far as time limits say.

The earliest start of the queue's head is found as in EASY (Lifka, The ANL/IBM SP Scheduling System, JSSPP 1995). The
running sessions are released in the order of their ends until the head fits. Sessions without a time limit end last, at
an unknown time, those that have run longest first.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from muster.core.model.session import Allocation, LaunchStep, Session, SessionState
from muster.core.scheduling.placement import Gang, PlacementState
from muster.core.scheduling.repack import Ahead, Placed, Repacker
from muster.core.scheduling.room import Room

# The most decisions that are simulated to estimate when sessions start.
_MOST_DECISIONS = 60


ClosedAt = Callable[[Session, float], frozenset[str]]
"""Says which agents are closed to a session that starts at a later time."""


class Holder(NamedTuple):
    """The capacity that a session has until `end` (`math.inf`: unknown), as `lies` says.

    Times are seconds since the epoch. Holders compare by their ends; no two are of one session.
    """

    end: float
    since: float
    session_id: str
    lies: Session | Placed


class Waiting(NamedTuple):
    """A waiting session, its request, and the agents that are closed to it."""

    session: Session
    gang: Gang
    closed: frozenset[str]


@dataclass(frozen=True, slots=True)
class Start:
    """The time at which a gang can start (`math.inf`: unknown), and what is free then beside it."""

    at: float
    beside: PlacementState


def end_of(session: Session, now: float) -> float:
    """Return when a placed or a starting session ends at the latest; `math.inf` where it has no time limit."""
    restarting = session.step is LaunchStep.RESTARTING
    if session.state is SessionState.TERMINATING and not restarting:
        return now
    if session.time_limit is None:
        return math.inf
    began = now if session.started_at is None or restarting else session.started_at
    return max(now, began + session.time_limit)


def gone_at(session: Session, now: float) -> float:
    """Return when a placed session that is to make room is gone at the latest: its signal gives its command time."""
    if session.state is not SessionState.RUNNING or not session.spec.signal_s:
        return now
    leaves_at = now + session.spec.signal_s if session.leaves_at is None else session.leaves_at
    return min(end_of(session, now), max(now, leaves_at))


def holder(session: Session, now: float) -> Holder:
    since = now if session.started_at is None else session.started_at
    return Holder(end_of(session, now), since, session.id, session)


def starter(session: Session, placed: Placed, now: float) -> Holder:
    """Return the holder for a session that starts now."""
    return Holder(end_of(session, now), now, session.id, placed)


class Future:
    """The future capacity of one group when nothing new starts there."""

    def __init__(self, state: PlacementState, holders: Iterable[Holder], now: float) -> None:
        self._state = state
        self._holders = sorted(holders)
        self._holdings = state.holdings(holder.lies.kernels for holder in self._holders)
        self._now = now

    def start(self, gang: Gang, closed: frozenset[str]) -> Start | None:
        """Return the earliest start, with holders let go in the order of their ends.

        None when even all of their capacity would not do.
        """
        state, gone = self._state.copy(), 0
        if state.fits(gang, closed):
            return self._start(gang, closed, state, 0, 0)
        # Most heads fit after a few ends: the steps grow, and only the last one is searched.
        step = 1
        while not (then := self._let_go(state, gone, gone + step)).fits(gang, closed):
            gone += step
            if gone >= len(self._holders):
                return None
            state, step = then, 2 * step
        low, high = gone + 1, min(gone + step, len(self._holders))
        while low < high:
            middle = (low + high) // 2
            if self._let_go(state, gone, middle).fits(gang, closed):
                high = middle
            else:
                low = middle + 1
        return self._start(gang, closed, state, gone, low)

    def open_start(self, waiting: Waiting, closed_at: ClosedAt) -> Start | None:
        """Return the earliest start on agents that are neither closed now nor by then; None where there is none."""
        closed = waiting.closed
        while (start := self.start(waiting.gang, closed)) is not None and start.at < math.inf:
            later = closed | closed_at(waiting.session, start.at)
            if later == closed:
                break
            closed = later
        return start

    def estimates(self, waiting: Iterable[Waiting], closed_at: ClosedAt, *, backfill: bool) -> dict[str, float]:
        """Return, by session id, when sessions start that wait in this order, if all end by their time limits.

        Each end is played in turn, and a decision after it: the first that does not fit is the head, and with
        `backfill` those behind it may pass. It ends at the first head whose start depends on a session without a time
        limit, and after so many decisions.
        """
        starts: dict[str, float] = {}
        state, queue, ends, at = self._state.lean(), list(waiting), list(self._holders), self._now
        head: _Reserved | None = None
        repacker = Repacker()
        for _ in range(_MOST_DECISIONS):
            decision = _Decision(state, ends, at, head, repacker, closed_at, backfill=backfill)
            decision.work(each._replace(closed=each.closed | closed_at(each.session, at)) for each in queue)
            head = decision.head
            for holder in decision.started:
                starts[holder.session_id] = at
                heapq.heappush(ends, holder)
            queue = [each for each in queue if each.session.id not in starts]
            if head is None or math.isinf(head.at) or not ends:
                break
            at = max(at, ends[0].end)
            ended = []
            while ends and ends[0].end <= at:
                ended.append(heapq.heappop(ends))
            state.release(chain.from_iterable(holder.lies.kernels for holder in ended))
        return starts

    def _start(self, gang: Gang, closed: frozenset[str], state: PlacementState, gone: int, count: int) -> Start:
        """Return the start with the first `count` holders let go, and all that end with the last of them.

        `gone` are let go already.
        """
        at = self._holders[count - 1].end if count else self._now
        while count < len(self._holders) and self._holders[count].end <= at < math.inf:
            count += 1
        then = self._let_go(state, gone, count)
        then.place(gang, closed)
        return Start(at, then)

    def _let_go(self, state: PlacementState, first: int, last: int) -> PlacementState:
        then = state.copy()
        then.give_back(self._holdings.of(first, last))
        return then


@dataclass(frozen=True, slots=True)
class _Reserved:
    """The head of an imagined queue, when it starts, and what is free then beside it."""

    session_id: str
    at: float
    beside: PlacementState


class _Decision:
    """A decision in an imagined queue. It changes the state in place, and lists the holders that it `started`."""

    def __init__(
        self,
        state: PlacementState,
        ends: Sequence[Holder],
        at: float,
        known: _Reserved | None,
        repacker: Repacker,
        closed_at: ClosedAt,
        *,
        backfill: bool,
    ) -> None:
        """Begin with `known`, the head of the decision before: its start stays, as nothing that passes it delays it."""
        self.head: _Reserved | None = None
        self._state = state
        self._ends = ends
        self._at = at
        self._known = known
        self._repacker = repacker
        self._closed_at = closed_at
        self._backfill = backfill
        self._room: Room | None = None
        self._sessions: list[Session] = []
        self._placed: list[Placed] = []
        self._ahead = Ahead()

    @property
    def started(self) -> list[Holder]:
        pairs = zip(self._sessions, self._placed, strict=True)
        return [starter(session, placed, self._at) for session, placed in pairs]

    def work(self, queue: Iterable[Waiting]) -> None:
        for waiting in queue:
            if self.head is None or self._room is None:
                allocations = self._first(waiting)
            else:
                allocations = self._behind(waiting, self.head, self._room)
            if allocations is not None:
                self._sessions.append(waiting.session)
                self._placed.append(Placed(waiting.gang, waiting.closed, allocations))
            elif self.head is not None and (not self._backfill or math.isinf(self.head.at)):
                return

    def _first(self, waiting: Waiting) -> tuple[Allocation, ...] | None:
        """Return the allocations of one with nobody ahead; where it does not fit and can later, it is the head."""
        session, gang, closed = waiting
        allocations = self._state.place(gang, closed)
        if allocations is not None or (gang, closed) in self._ahead:
            return allocations
        moved = self._repacker.repacked(self._state, self._placed, gang, closed, self._ahead)
        if moved is not None:
            self._placed = moved[:-1]
            return moved[-1].allocations
        self._ahead.add(gang, closed)
        known = self._known
        if known is not None and known.session_id == session.id and known.at > self._at:
            self.head = known
        else:
            future = Future(self._state, [*self._ends, *self.started], self._at)
            start = future.open_start(waiting, self._closed_at)
            self.head = None if start is None else _Reserved(session.id, start.at, start.beside)
        if self.head is not None:
            self._room = Room(self._state, self.head.beside)
        return None

    def _behind(self, waiting: Waiting, head: _Reserved, room: Room) -> tuple[Allocation, ...] | None:
        in_time = end_of(waiting.session, self._at) <= head.at
        return room.place(waiting.gang, waiting.closed, in_time=in_time)
