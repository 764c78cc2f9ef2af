"""Fair over time: next is always the owner who has used the least in proportion to their share weight.

An owner's usage is the mean dominant share that they recently held, older times counting for less, plus their present
one. An owner who returns after a long time goes first, until their usage exceeds that of others.
"""

from collections.abc import Iterable, Sequence

from muster.scheduler_plugin import QueueView, Session, least_first

NEEDS_USAGE = True


def order(sessions: Sequence[Session], view: QueueView) -> Iterable[Session]:
    def had(owner: str) -> float:
        return (view.usage.get(owner, 0.0) + view.dominant_share(owner)) / view.shares.get(owner, 1.0)

    return least_first(sessions, view, had)
