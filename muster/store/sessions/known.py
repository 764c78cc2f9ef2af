"""The sessions of a snapshot as a store last read them: of a long queue, only what has changed is read again."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock

import sqlalchemy as sa

from muster.core.model.session import FINAL, Session, SessionState
from muster.store.database.postgresql import history_of
from muster.store.database.tables import NOT_ENDED, sessions
from muster.store.sessions.reader import SELECT, SessionReader, wait_ids
from muster.store.sessions.waits import KnownWaits, WaitChanges, read_waits, wait_from

SESSION_REVISION = "session-revision"
"""A counter that writers of sessions increment first of all, so that revisions are committed in their order."""
_NOTHING_KNOWN = -1
_NOT_ENDED = SELECT.where(NOT_ENDED)
_NEWS = SELECT.where(sessions.c.revision > sa.bindparam("known"))


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """The sessions that had not ended as of a revision, by id and in a tuple, and why they waited.

    `dependencies` holds those of pending sessions that have any, by the session's id. `history` is that of the database
    in which the revision was given (`history_of`).
    """

    by_id: Mapping[str, Session] = field(default_factory=dict)
    waits: KnownWaits = field(default_factory=KnownWaits)
    revision: int = _NOTHING_KNOWN
    dependencies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    history: str = ""
    sessions: tuple[Session, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sessions", tuple(self.by_id.values()))


class KnownSessions:
    """A cache of sessions. Several threads may read it, each in a transaction of its own."""

    def __init__(self, reader: SessionReader) -> None:
        self._reader = reader
        self._lock = Lock()
        self._known = KnownQueue()
        self._ended: tuple[str, Mapping[str, Session]] = ("", {})

    def read(self, connection: sa.Connection, revision: int) -> KnownQueue:
        """Return the sessions that have not ended; the same values where nothing has changed.

        `revision` is the value of SESSION_REVISION that this transaction sees.
        """
        history = history_of(connection)
        with self._lock:
            known = self._known if self._known.history == history else KnownQueue(history=history)
            # A later transaction's values are not as of this one's moment.
            usable = known if known.revision <= revision else KnownQueue(history=history)
            now = self._as_of(revision, usable, connection)
            if usable is known:
                self._known = now
        return now

    def note_waits(self, changes: WaitChanges, written: KnownWaits, revision: int) -> None:
        """Know the waits that were just written with this revision, where nothing else can have changed before it."""
        with self._lock:
            known = self._known
            if (
                known.revision == revision - 1
                and changes.before is known.waits
                and not changes.gone
                and all(_is_pending(known.by_id.get(session_id)) for session_id in changes.moved)
            ):
                rewritten = changes.rewritten
                of_rewritten = [key for key, row in written.of_sessions.items() if row in rewritten]
                renewed = _with_waits(known.by_id, {*changes.moved, *of_rewritten}, written)
                self._known = replace(known, by_id={**known.by_id, **renewed}, waits=written, revision=revision)

    def ended(self, connection: sa.Connection, queue: KnownQueue) -> Mapping[str, Session]:
        """Return by id the ended sessions that a pending one depends on."""
        # Not by a set's difference, which would go through the whole queue.
        needed = {key for keys in queue.dependencies.values() for key in keys if key not in queue.by_id}
        history, ended = self._ended
        # An ended session does not change any more.
        known = {key: session for key, session in ended.items() if key in needed} if history == queue.history else {}
        found = known | self._reader.of_ids(connection, sorted(needed - known.keys()))
        # Another thread may keep what its transaction needs instead, at any time.
        self._ended = (queue.history, found)
        return found

    def _as_of(self, revision: int, known: KnownQueue, connection: sa.Connection) -> KnownQueue:
        if known.revision == revision:
            return known
        query = _NOT_ENDED if known.revision == _NOTHING_KNOWN else _NEWS
        rows = connection.execute(query, {"known": known.revision}).all()
        waits = read_waits(connection)
        made = self._reader.made_of(connection, rows, waits, of_all=query is _NOT_ENDED)
        changed = {session.id: session for session in made}
        by_id = {**known.by_id, **changed}
        of_sessions = {**known.waits.of_sessions, **wait_ids(rows)}
        dependencies = dict(known.dependencies)
        for session in changed.values():
            dependencies.pop(session.id, None)
            if session.state is SessionState.PENDING and session.spec.dependencies:
                dependencies[session.id] = session.spec.dependencies
            if session.state in FINAL:
                del by_id[session.id]
            if session.state in FINAL or not session.wait:
                of_sessions.pop(session.id, None)
        new = KnownWaits.of(waits, of_sessions)
        renewed = {number for number, text in new.texts.items() if known.waits.texts.get(number) != text}
        if renewed:
            # Those that were just read have theirs.
            older = (key for key, row in of_sessions.items() if row in renewed and key not in changed)
            by_id |= {key: replace(by_id[key], wait=waits[of_sessions[key]]) for key in older}
        return KnownQueue(by_id, new, revision, dependencies, known.history)


def _is_pending(session: Session | None) -> bool:
    return session is not None and session.state is SessionState.PENDING


def _with_waits(by_id: Mapping[str, Session], ids: Iterable[str], written: KnownWaits) -> dict[str, Session]:
    """Return these sessions with their waits, but for those whose wait is the same."""
    waits = {row: wait_from(json.loads(text)) for row, text in written.texts.items()}
    waiting = {session_id: waits[written.of_sessions[session_id]] for session_id in ids}
    return {key: replace(by_id[key], wait=wait) for key, wait in waiting.items() if by_id[key].wait != wait}
