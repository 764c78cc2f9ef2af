"""Choose the running sessions that give their capacity to one of higher priority: those whose end loses least."""

from collections.abc import Sequence

from muster.core.model.session import Session, SessionState
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
    placed: Sequence[Session],
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
        key=lambda other: (other.spec.priority, loss(other, capacity, now), other.id),
    )
    low, high = 1, len(candidates) + 1
    while low < high:
        middle = (low + high) // 2
        if _fits(gang, closed, state, candidates[:middle]):
            high = middle
        else:
            low = middle + 1
    if low > len(candidates):
        return []
    chosen = candidates[:low]
    for candidate in reversed(chosen[:-1]):
        rest = [other for other in chosen if other.id != candidate.id]
        if _fits(gang, closed, state, rest):
            chosen = rest
    return chosen


def _fits(gang: Gang, closed: frozenset[str], state: PlacementState, leaving: Sequence[Session]) -> bool:
    then = state.copy()
    then.release(kernel for session in leaving for kernel in session.kernels)
    return then.fits(gang, closed)
