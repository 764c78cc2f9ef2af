"""Which sessions were queued again for another one, known from one pass to the next."""

from collections.abc import Sequence
from itertools import compress
from operator import not_

from muster.core.model.session import Session

_MOST_GONE = 1024


class MovedSessions:
    """A cache of the sessions that were looked at, by their identity: almost all of them were moved for nobody."""

    def __init__(self) -> None:
        # An identity is good for as long as its session is here.
        self._known: dict[int, Session] = {}
        self._is_any_moved = False

    def ahead(self, sessions: Sequence[Session]) -> frozenset[str]:
        """Return the ids of the sessions for which these were moved."""
        known = self._known
        if len(known) > len(sessions) + _MOST_GONE:
            self._known = known = {}
            self._is_any_moved = False
        # Without a look at the others: to read thousands of sessions takes most of a pass in which little happens.
        new = list(compress(sessions, map(not_, map(known.__contains__, map(id, sessions)))))
        known.update(zip(map(id, new), new, strict=True))
        self._is_any_moved = self._is_any_moved or any(session.moved_for is not None for session in new)
        if not self._is_any_moved:
            return frozenset()
        moved = frozenset([session.moved_for for session in sessions if session.moved_for is not None])
        if not moved:
            self._known, self._is_any_moved = {}, False
        return moved
