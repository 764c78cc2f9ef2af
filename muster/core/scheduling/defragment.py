"""Choose running sessions that start anew elsewhere, so that one fits for which enough is free, but spread.

Only restartable ones move, and only where the session then starts for sure and all of them fit elsewhere at once.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from muster.core.model.session import Kernel, Session, SessionState
from muster.core.scheduling.placement import Gang, PlacementState
from muster.core.scheduling.preemption import loss
from muster.core.values.slots import Slots

RUNS_BETWEEN_MOVES_S: Final = 1800.0
"""A session that was queued again moves only when it has run for so long since."""
_MOST_ALONE: Final = 16
_SETS: Final = (2, 4, 8)


class Movable(NamedTuple):
    """A running session, its gang when it is queued again, and the agents that are closed to it."""

    session: Session
    gang: Gang
    closed: frozenset[str]


def may_move(other: Session, session: Session, now: float) -> bool:
    """Return whether a session may be queued again so that another starts in its place."""
    since = moves_from(other)
    return (
        since is not None
        and since <= now
        and other.spec.priority <= session.spec.priority
        and other.id not in session.spec.dependencies
    )


def moves_from(session: Session) -> float | None:
    """Return from when on a session may be moved, in seconds since the epoch; None where that is never."""
    if session.state is not SessionState.RUNNING or not session.spec.requeue:
        return None
    if session.requeues == 0:
        return 0.0
    return None if session.started_at is None else session.started_at + RUNS_BETWEEN_MOVES_S


def lost_s(session: Session, now: float) -> float:
    """Return the seconds of its run that a session loses when it starts anew."""
    return now - (now if session.started_at is None else session.started_at)


def in_line(sessions: Iterable[Session]) -> list[Session]:
    """Return sessions that were moved in the order in which they are tried, all before those that never ran."""
    return sorted(sessions, key=lambda session: (-session.spec.priority, session.submitted_at, session.id))


def moves(
    gang: Gang,
    closed: frozenset[str],
    state: PlacementState,
    movable: Sequence[Movable],
    capacity: Slots,
    now: float,
    most_s: float,
) -> list[Movable]:
    """Return the sessions to move, none where no few of them would do.

    The one whose move loses least, or else some of the cheapest without those that need not move. Together they lose
    at most `most_s` seconds of their runs. `capacity` is the group's.
    """
    if not movable or not state.has_in_total(gang, closed):
        return []
    cheapest = sorted(movable, key=lambda each: (loss(each.session, capacity, now), each.session.id))
    chosen = next(_sets(gang, closed, state, cheapest), [])
    return chosen if sum(lost_s(each.session, now) for each in chosen) <= most_s else []


def _sets(
    gang: Gang, closed: frozenset[str], state: PlacementState, cheapest: Sequence[Movable]
) -> Iterator[list[Movable]]:
    """Yield sets that suffice, the cheaper ones first."""
    yield from ([each] for each in cheapest[:_MOST_ALONE] if _suffices(gang, closed, state, [each]))
    for size in _SETS:
        chosen = list(cheapest[:size])
        if len(chosen) > size // 2 and len(chosen) > 1 and _suffices(gang, closed, state, chosen):
            for each in chosen[::-1]:
                rest = [other for other in chosen if other is not each]
                if rest and _suffices(gang, closed, state, rest):
                    chosen = rest
            yield chosen


def _suffices(gang: Gang, closed: frozenset[str], state: PlacementState, chosen: Sequence[Movable]) -> bool:
    then = state.lean()
    then.release(_kernels(chosen))
    if then.place(gang, closed) is None:
        return False
    by_id = {each.session.id: each for each in chosen}
    order = (by_id[session.id] for session in in_line(each.session for each in chosen))
    return all(then.place(each.gang, each.closed) is not None for each in order)


def _kernels(chosen: Iterable[Movable]) -> Iterator[Kernel]:
    return (kernel for each in chosen for kernel in each.session.kernels)
