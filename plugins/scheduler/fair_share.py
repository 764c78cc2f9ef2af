"""Fair over time: next is always the owner who has had the least of what he is entitled to.

What he has had is the dominant share that he held on average of late (older times count for less), plus the one that
he holds now; his shares say what he is entitled to. An owner who was away for long goes first when he comes back, until
he holds so much that it is somebody else's turn.
"""

from collections.abc import Iterable, Sequence

from muster.core.model.policy import QueueView
from muster.core.model.session import Session
from muster.core.scheduling.fairness import least_first

NEEDS_USAGE = True


def order(sessions: Sequence[Session], view: QueueView) -> Iterable[Session]:
    def had(owner: str) -> float:
        return (view.usage.get(owner, 0.0) + view.dominant_share(owner)) / view.shares.get(owner, 1.0)

    return least_first(sessions, view, had)
