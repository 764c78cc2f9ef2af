"""Last in, first out: the newest session first."""

from collections.abc import Iterable, Sequence

from muster.core.model.policy import QueueView, by_arrival
from muster.core.model.session import Session


def order(sessions: Sequence[Session], view: QueueView) -> Iterable[Session]:
    return reversed(list(by_arrival(sessions, view)))
