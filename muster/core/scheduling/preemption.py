"""Choose the running sessions that give their capacity to one of higher priority: those whose end loses least."""

from collections.abc import Iterable, Iterator, Sequence

from muster.core.model.session import Kernel, Session, SessionState
from muster.core.scheduling.placement import Gang, PlacementState
from muster.core.values.slots import SLOT_NAMES, Slots


def loss(session: Session, capacity: Slots, now: float) -> float:
    """Return the work that a session's end throws away, in seconds of the whole group.

    That is its run time by its largest part of any slot.
    """
    slots = session.slots
    parts = [getattr(slots, name) / whole for name in SLOT_NAMES if (whole := getattr(capacity, name))]
    return max(parts, default=0.0) * (now - (session.started_at or now))


def victims(
    session: Session,
    gang: Gang,
    closed: frozenset[str],
    state: PlacementState,
    placed: Iterable[Session],
    capacity: Slots,
    now: float,
) -> list[Session]:
    """Return the sessions to preempt; none where no preemptible ones of lower priority would make room.

    They are taken by priority and then by loss until the gang fits. Those that turn out not to be in its way are
    spared, the dearest first. A session that preempted one that it depends on would wait for it again, and so for ever.
    """
    candidates = sorted(
        (
            other
            for other in placed
            if other.state is SessionState.RUNNING
            and other.spec.preemptible
            and other.spec.priority < session.spec.priority
            and other.id not in session.spec.dependencies
        ),
        # Those that were sent a signal for it first: another choice would have the rest sent one too.
        key=lambda o: (o.spec.priority, o.leaves_at is None, loss(o, capacity, now), o.id),
    )
    then = state.copy()
    count = _enough(then, gang, closed, candidates)
    if not count:
        return []
    *others, last = candidates[:count]
    return _needed(then, gang, closed, [*reversed(others)], last)


def _enough(then: PlacementState, gang: Gang, closed: frozenset[str], leaving: Sequence[Session]) -> int:
    """Return how many of the first have to leave until the gang fits, 0 where all would not do; let them go in `then`.

    The steps grow, and only the last one is searched: whatever leaves is let go a few times at the most.
    """
    low, gone, step = 0, 0, 1
    while gone == 0 or not then.fits(gang, closed):
        if gone == len(leaving):
            return 0
        low, gone, step = gone, min(gone + step, len(leaving)), 2 * step
        then.release(_kernels(leaving[low:gone]))
    low, high = low + 1, gone
    while low < high:
        middle = (low + high) // 2
        then.take(_kernels(leaving[middle:gone]))
        then.release(_kernels(leaving[gone:middle]))
        gone = middle
        if then.fits(gang, closed):
            high = middle
        else:
            low = middle + 1
    then.release(_kernels(leaving[gone:low]))
    return low


def _needed(
    then: PlacementState, gang: Gang, closed: frozenset[str], leaving: Sequence[Session], last: Session
) -> list[Session]:
    """Return the sessions without whose end the gang does not fit, `last` among them; `leaving` come dearest first.

    As many as fit again beside the gang are spared at once: steps grow up to one that does not fit, and shrink then.
    """
    chosen = [last]
    position = 0
    while position < len(leaving):
        step, grows = 1, True
        while step and position < len(leaving):
            spared = leaving[position : position + step]
            then.take(_kernels(spared))
            if then.fits(gang, closed):
                position += len(spared)
            else:
                then.release(_kernels(spared))
                grows = False
            step = 2 * step if grows else step // 2
        chosen += leaving[position : position + 1]
        position += 1
    return chosen[::-1]


def _kernels(sessions: Iterable[Session]) -> Iterator[Kernel]:
    return (kernel for session in sessions for kernel in session.kernels)
