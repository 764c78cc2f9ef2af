"""Sessions of several owners in the order that is fair by some measure of what each has."""

import heapq
from collections.abc import Callable, Iterator, Sequence

from muster.core.model.policy import QueueView, by_arrival
from muster.core.model.session import Session


def least_first(sessions: Sequence[Session], view: QueueView, measure: Callable[[str], float]) -> Iterator[Session]:
    """Yield each time the oldest session of the owner who has the least by `measure`, as it is then.

    `measure` may grow with `view.allocated`, and change with nothing else. Among owners that have the same, the one
    with the oldest session in the queue is first. O(log owners) for each session.
    """
    waiting: dict[str, list[Session]] = {}
    for session in by_arrival(sessions, view):
        waiting.setdefault(session.owner, []).append(session)
    for of_owner in waiting.values():
        of_owner.reverse()
    held = {owner: view.allocated.get(owner) for owner in waiting}
    heap = [(measure(owner), number, owner) for number, owner in enumerate(waiting)]
    heapq.heapify(heap)
    while heap:
        _, number, owner = heap[0]
        if view.allocated.get(owner) is not held[owner]:
            held[owner] = view.allocated.get(owner)
            heapq.heapreplace(heap, (measure(owner), number, owner))
            continue
        yield waiting[owner].pop()
        if not waiting[owner]:
            heapq.heappop(heap)
