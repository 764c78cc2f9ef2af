"""When capacity of a group becomes free, as far as time limits say.

The earliest start of the queue's head is found as in EASY (Lifka, The ANL/IBM SP Scheduling System, JSSPP 1995). The
running sessions are released in the order of their ends until the head fits. Sessions without a time limit end last, at
an unknown time, those that have run longest first.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from muster.core.model.session import AllocatedSlots, Allocation, Kernel, LaunchStep, Session, SessionState
from muster.core.scheduling.placement import Gang, PlacementState

# The most decisions that are simulated to estimate when sessions start.
_MOST_DECISIONS = 60


class Holder(NamedTuple):
    """A session that has capacity until `end` (`math.inf`: unknown). Times are seconds since the epoch."""

    end: float
    since: float
    session_id: str
    kernels: Sequence[Kernel | AllocatedSlots]


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
    if session.spec.time_limit is None:
        return math.inf
    began = now if session.started_at is None or restarting else session.started_at
    return max(now, began + session.spec.time_limit)


def holder(session: Session, now: float) -> Holder:
    return Holder(end_of(session, now), session.started_at or now, session.id, session.kernels)


def starter(session: Session, allocations: Sequence[Allocation], now: float) -> Holder:
    """Return the holder for a session that starts now."""
    return Holder(end_of(session, now), now, session.id, held(session, allocations))


def held(session: Session, allocations: Sequence[Allocation]) -> tuple[AllocatedSlots, ...]:
    """Return what the session's kernels have with these allocations, in rank order."""
    return tuple(map(AllocatedSlots, (kernel.slots for kernel in session.kernels), allocations))


class Future:
    """The future capacity of one group when nothing new starts there."""

    def __init__(self, state: PlacementState, holders: Iterable[Holder], now: float) -> None:
        self._state = state
        self._holders = sorted(holders, key=lambda holder: holder[:3])
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

    def estimates(self, waiting: Iterable[Waiting], *, backfill: bool) -> dict[str, float]:
        """Return, by session id, when sessions start that wait in this order, if all end by their time limits.

        Each end is played in turn, and a decision after it: the first that does not fit is the head, and with
        `backfill` those behind it may pass. It ends at the first head whose start depends on a session without a time
        limit, and after so many decisions.
        """
        starts: dict[str, float] = {}
        state, queue, ends, at = self._state.lean(), list(waiting), list(self._holders), self._now
        head: _Reserved | None = None
        for _ in range(_MOST_DECISIONS):
            head, started = _decision(state, queue, ends, at, head, backfill=backfill)
            for holder in started:
                starts[holder.session_id] = at
                heapq.heappush(ends, holder)
            queue = [each for each in queue if each.session.id not in starts]
            if head is None or math.isinf(head.at) or not ends:
                break
            at = max(at, ends[0].end)
            while ends and ends[0].end <= at:
                state.release(heapq.heappop(ends).kernels)
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
        then.release(chain.from_iterable(holder.kernels for holder in self._holders[first:last]))
        return then


@dataclass(frozen=True, slots=True)
class _Reserved:
    """The head of an imagined queue, when it starts, and what is free then beside it."""

    session_id: str
    at: float
    beside: PlacementState


def _decision(
    state: PlacementState,
    queue: Iterable[Waiting],
    ends: Sequence[Holder],
    at: float,
    known: _Reserved | None,
    *,
    backfill: bool,
) -> tuple[_Reserved | None, list[Holder]]:
    """Start what can start, in a state that is changed in place; return the head, and what starts.

    `known` is the head of the decision before: its start stays what it was, as nothing that passes it delays it.
    """
    head: _Reserved | None = None
    room = state
    started: list[Holder] = []
    for session, gang, closed in queue:
        if head is None:
            allocations = state.place(gang, closed)
            if allocations is None:
                head = known if known and known.session_id == session.id and known.at > at else None
                if head is None:
                    start = Future(state, [*ends, *started], at).start(gang, closed)
                    head = _Reserved(session.id, start.at, start.beside) if start is not None else None
                if head is not None:
                    if not backfill or math.isinf(head.at):
                        break
                    room = state.least(head.beside)
                continue
        else:
            ends_in_time = end_of(session, at) <= head.at
            given, other = (state, room) if ends_in_time else (room, state)
            allocations = given.place(gang, closed)
            if allocations is None:
                continue
            other.take(held(session, allocations))
            if not ends_in_time:
                head.beside.take(held(session, allocations))
        started.append(starter(session, allocations, at))
    return head, started
