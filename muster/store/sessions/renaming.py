"""Another name for a session: in its row, its spec and its story."""

import sqlalchemy as sa

from muster.core.model.session import FINAL, Session, SessionState
from muster.core.values.errors import NameTakenError, NotPossibleInStateError
from muster.store.database.counters import increment_counter
from muster.store.database.tables import events, sessions
from muster.store.sessions.known import SESSION_REVISION
from muster.store.sessions.names import taken

_TOO_LATE = frozenset({*FINAL, SessionState.TERMINATING})


def rename(connection: sa.Connection, session: Session, name: str, by: str, now: float) -> None:
    """Rename a session. Its id, its state and its reason stay; one that has the name already stays as it is.

    Raises NameTakenError, and NotPossibleInStateError where it has ended or is about to.
    """
    revision = increment_counter(connection, SESSION_REVISION)
    this = sessions.c.id == session.id
    row = connection.execute(sa.select(sessions.c.name, sessions.c.state, sessions.c.spec).where(this)).one()
    if row.state in _TOO_LATE:
        raise NotPossibleInStateError(f"session {row.name} is {row.state}; only one that goes on can be renamed")
    if row.name == name:
        return
    if taken(connection, [name]):
        raise NameTakenError(f"NEW: a session that has not ended is already called {name}; choose another name")
    changed = {"name": name, "spec": {**row.spec, "name": name}, "revision": revision}
    connection.execute(sa.update(sessions).where(this).values(changed))
    line = {"session_id": session.id, "at": now, "from_state": row.state, "to_state": row.state}
    connection.execute(sa.insert(events).values(**line, reason=f"renamed from {row.name} to {name} by {by}"))
