"""A group's queue in its order."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from muster.core.model.policy import Order, QueueView
from muster.core.model.session import Session

# So many sessions are read at a time.
_BATCH = 1024


def batches(
    pending: Sequence[Session], skipped: Collection[str], order: Order, view: QueueView
) -> Iterator[Sequence[Session]]:
    """Yield the sessions by priority and in the policy's order, without the skipped ones.

    Those whose order is fixed beforehand come several at a time, the others one by one.
    """
    others = [session for session in pending if session.id not in skipped] if skipped else pending
    by_priority: dict[int, list[Session]] = defaultdict(list)
    # Runs of sessions at a time: most of a long queue have the same.
    for priority, run in groupby(others, attrgetter("spec.priority")):
        by_priority[priority].extend(run)
    for priority in sorted(by_priority, reverse=True):
        ordered = order(by_priority[priority], view)
        if isinstance(ordered, Sequence):
            yield from (ordered[start : start + _BATCH] for start in range(0, len(ordered), _BATCH))
        else:
            yield from ([session] for session in ordered)
