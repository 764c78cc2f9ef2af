"""The placed sessions of a resource group, kept up to date by those that came and went."""

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable
from operator import attrgetter

from muster.core.model.session import LaunchStep, Session, SessionState
from muster.core.scheduling.future import Holder, holder

# More than these are sorted together.
_MOST_ONE_BY_ONE = 16
_end = attrgetter("end")


class PlacedSessions:
    """What a pass asks of all placed sessions of a group. To read thousands of them would take most of a pass."""

    def __init__(self) -> None:
        # By identity, which is good for as long as the session is here.
        self._sessions: dict[int, Session] = {}
        self._endless = 0
        # Of which it was not asked yet when they end, and those of which this depends on the time.
        self._unread: dict[int, Session] = {}
        self._open: dict[int, Session] = {}
        self._ends: list[Holder] = []

    @property
    def all(self) -> Collection[Session]:
        """Return the sessions; their order has no meaning."""
        return self._sessions.values()

    @property
    def endless(self) -> int:
        """Return how many have no time limit."""
        return self._endless

    def change(self, gone: Iterable[Session], new: Iterable[Session]) -> None:
        """Forget sessions that are gone, and learn new ones."""
        for session in gone:
            self._forget(session)
        for session in new:
            self._sessions[id(session)] = self._unread[id(session)] = session
            self._endless += session.time_limit is None

    def holders(self, now: float) -> list[Holder]:
        """Return the capacity that each has, and until when."""
        self._read()
        late = bisect_left(self._ends, now, key=_end)
        overdue = (each._replace(end=now) for each in self._ends[:late])
        return [*overdue, *self._ends[late:], *(holder(session, now) for session in self._open.values())]

    def _forget(self, session: Session) -> None:
        key = id(session)
        del self._sessions[key]
        self._endless -= session.time_limit is None
        if self._unread.pop(key, None) is None and self._open.pop(key, None) is None:
            del self._ends[bisect_left(self._ends, _fixed(session))]

    def _read(self) -> None:
        """Sort those of which it was not asked yet when they end."""
        self._open |= {key: session for key, session in self._unread.items() if _depends_on_time(session)}
        fixed = [_fixed(session) for key, session in self._unread.items() if key not in self._open]
        self._unread = {}
        if len(fixed) > _MOST_ONE_BY_ONE:
            self._ends += fixed
            self._ends.sort()
        else:
            for each in fixed:
                insort(self._ends, each)


def _depends_on_time(session: Session) -> bool:
    return (
        session.started_at is None or session.state is SessionState.TERMINATING or session.step is LaunchStep.RESTARTING
    )


def _fixed(session: Session) -> Holder:
    """Return the holder of a session that runs, with its end by its time limit, be it over."""
    return holder(session, -math.inf)
