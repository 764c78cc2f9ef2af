"""Last in, first out: the newest session first."""

from collections.abc import Iterable, Sequence

from muster.scheduler_plugin import QueueView, Session, by_arrival


def order(sessions: Sequence[Session], view: QueueView) -> Iterable[Session]:
    return reversed(list(by_arrival(sessions, view)))
