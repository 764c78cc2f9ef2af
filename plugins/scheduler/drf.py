"""Dominant resource fairness: next is always the owner with the smallest dominant share.

Weighted by the owners' shares. Ghodsi, Zaharia, Hindman, Konwinski, Shenker, Stoica: Dominant Resource Fairness: Fair
Allocation of Multiple Resource Types, NSDI 2011, algorithm 1 and section 4.3.
"""

from collections.abc import Iterable, Sequence

from muster.scheduler_plugin import QueueView, Session, least_first


def order(sessions: Sequence[Session], view: QueueView) -> Iterable[Session]:
    return least_first(sessions, view, lambda owner: view.dominant_share(owner) / view.shares.get(owner, 1.0))
