"""The sessions of a snapshot as a store last read them: of a long queue, only what has changed is read again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

import sqlalchemy as sa

from muster.core.model.session import FINAL, Session, SessionState
from muster.store.database.tables import NOT_ENDED, sessions
from muster.store.sessions.reader import SELECT, SessionReader, wait_ids
from muster.store.sessions.waits import KnownWaits, WaitChanges, read_waits, wait_from

SESSION_REVISION = "session-revision"
"""A counter that writers of sessions increment first of all, so that revisions are committed in their order."""
_NOTHING_KNOWN = -1
_NOT_ENDED = SELECT.where(NOT_ENDED)
_NEWS = SELECT.where(sessions.c.revision > sa.bindparam("known"))


@dataclass(frozen=True, slots=True)
class _Known:
    """The sessions that had not ended, and why they waited, as of a revision."""

    sessions: Mapping[str, Session] = field(default_factory=dict)
    waits: KnownWaits = field(default_factory=KnownWaits)
    revision: int = _NOTHING_KNOWN


class KnownSessions:
    """A cache of sessions. Several threads may read it, each in a transaction of its own."""

    def __init__(self, reader: SessionReader) -> None:
        self._reader = reader
        self._lock = Lock()
        self._known = _Known()
        self._ended: Mapping[str, Session] = {}

    def read(self, connection: sa.Connection, revision: int) -> tuple[tuple[Session, ...], KnownWaits]:
        """Return the sessions that have not ended, with their waits; the same values where nothing has changed.

        `revision` is the value of SESSION_REVISION that this transaction sees.
        """
        with self._lock:
            # A later transaction's values are not as of this one's moment.
            usable = self._known if self._known.revision <= revision else _Known()
            now = self._as_of(revision, usable, connection)
            if usable is self._known:
                self._known = now
        return tuple(now.sessions.values()), now.waits

    def note_waits(self, changes: WaitChanges, written: KnownWaits, revision: int) -> None:
        """Know the waits that were just written with this revision, where nothing else can have changed before it."""
        with self._lock:
            known = self._known
            ids = written.of_sessions.keys()
            if (
                known.revision == revision - 1
                and changes.before is known.waits
                and known.waits.of_sessions.keys() <= ids <= known.sessions.keys()
                and all(known.sessions[session_id].state is SessionState.PENDING for session_id in ids)
            ):
                waits = {row: wait_from(json.loads(text)) for row, text in written.texts.items()}
                renewed = {
                    session_id: replace(known.sessions[session_id], wait=waits[row])
                    for session_id, row in written.of_sessions.items()
                    if known.sessions[session_id].wait != waits[row]
                }
                self._known = _Known({**known.sessions, **renewed}, written, revision)

    def ended(self, connection: sa.Connection, active: Sequence[Session]) -> Mapping[str, Session]:
        """Return by id the ended sessions that a pending one of the active ones depends on."""
        pending = (session for session in active if session.state is SessionState.PENDING)
        needed = {key for session in pending for key in session.spec.dependencies}
        needed.difference_update(session.id for session in active)
        # An ended session does not change any more.
        known = {key: session for key, session in self._ended.items() if key in needed}
        self._ended = known | self._reader.of_ids(connection, sorted(needed - known.keys()))
        return self._ended

    def _as_of(self, revision: int, known: _Known, connection: sa.Connection) -> _Known:
        if known.revision == revision:
            return known
        query = _NOT_ENDED if known.revision == _NOTHING_KNOWN else _NEWS
        rows = connection.execute(query, {"known": known.revision}).mappings().all()
        waits = read_waits(connection)
        changed = self._reader.made_of(connection, rows, waits)
        by_id = dict(known.sessions) | {session.id: session for session in changed}
        of_sessions = dict(known.waits.of_sessions) | wait_ids(rows)
        for session in changed:
            if session.state in FINAL:
                del by_id[session.id]
            if session.state in FINAL or not session.wait:
                of_sessions.pop(session.id, None)
        new = KnownWaits.of(waits, of_sessions)
        renewed = {number for number, text in new.texts.items() if known.waits.texts.get(number) != text}
        # Those that were just read have theirs.
        older = of_sessions.keys() - {session.id for session in changed}
        by_id |= {
            key: replace(by_id[key], wait=waits[of_sessions[key]]) for key in older if of_sessions[key] in renewed
        }
        return _Known(by_id, new, revision)
