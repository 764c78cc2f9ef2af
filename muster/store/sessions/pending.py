"""The sessions that wait, when new ones are to join them: limits say how many may."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from muster.core.model.session import Session, SessionState
from muster.store.database.counters import value_of
from muster.store.database.tables import sessions
from muster.store.sessions.known import SESSION_REVISION
from muster.store.sessions.reader import SELECT, SessionReader

_PENDING = SELECT.where(sessions.c.state == SessionState.PENDING.value)
_NEWS = SELECT.where(sessions.c.revision > sa.bindparam("known"))


@dataclass(frozen=True, slots=True)
class PendingSessions:
    """The sessions that waited, by id, as of a revision of all sessions."""

    by_id: Mapping[str, Session]
    revision: int


@dataclass(frozen=True, slots=True)
class PendingCheck:
    """A check that new sessions may join those that wait, and those for which it was made already.

    `check` gets the sessions that wait, and raises where the new ones may not.
    """

    passed: PendingSessions
    check: Callable[[Collection[Session]], None]


def read_pending(connection: sa.Connection, reader: SessionReader) -> PendingSessions:
    """Return the sessions that wait now."""
    revision = value_of(connection, SESSION_REVISION)
    return PendingSessions({session.id: session for session in reader.read(connection, _PENDING)}, revision)


def repeat_check(connection: sa.Connection, reader: SessionReader, made: PendingCheck) -> None:
    """Repeat the check if others wait since it was made, or ask for something else: it passes still if some only left.

    The caller holds a lock that lets one writer in at a time.
    """
    before = made.passed
    news = {session.id: session for session in reader.read(connection, _NEWS, {"known": before.revision})}
    if any(session.state is SessionState.PENDING and _is_news(session, before) for session in news.values()):
        by_id = {**before.by_id, **news}
        made.check([session for session in by_id.values() if session.state is SessionState.PENDING])


def _is_news(session: Session, before: PendingSessions) -> bool:
    known = before.by_id.get(session.id)
    return known is None or known.updates != session.updates
