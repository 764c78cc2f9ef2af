"""A group's queue in its order, and which of its sessions say what is typical."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter
from zlib import crc32

from muster.core.model.policy import Order, QueueView
from muster.core.model.session import Session

# So many sessions are read at a time.
_BATCH = 1024
# With more sessions than these, only some of them say what is typical.
_SAMPLED = 16_384
_id = attrgetter("id")


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


def sample(placed: Sequence[Session], pending: Sequence[Session]) -> Iterable[Session]:
    """Return the sessions that say what is typical: those that run and wait are a group's latest history."""
    sessions, most = chain(placed, pending), len(placed) + len(pending)
    if most < _SAMPLED:
        return sessions
    # By their ids, so that the order in which they are read has no bearing.
    some = (1 << (most // _SAMPLED).bit_length()) - 1
    every = list(sessions)
    sums = map(crc32, map(str.encode, map(_id, every)))
    return [session for session, number in zip(every, sums, strict=True) if not number & some]
