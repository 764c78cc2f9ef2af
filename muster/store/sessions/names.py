"""Names of sessions and arrays: what they mean, and which are taken."""

from collections.abc import Sequence

import sqlalchemy as sa

from muster.core.values.errors import AmbiguousNameError, NotFoundError
from muster.store.database.tables import NOT_ENDED, sessions

_CHUNK = 500
_LENGTH_OF_AN_ID = 36
_LEAST_OF_AN_ID = 4


def meant(connection: sa.Connection, reference: str, owner: str | None = None) -> sa.ColumnElement[bool]:
    """Return the condition that a session, or all sessions of an array, fulfil.

    A reference is an id, a name that is no id, the name of an array, or the start of an id (4 characters or more) that
    is no name. A name that several had means the one that has not ended, or the newest. With an `owner`, only their
    sessions count. Raises NotFoundError, and AmbiguousNameError if several that have not ended fit.
    """
    owned = sa.true() if owner is None else sessions.c.owner == owner
    of_id = sa.and_(owned, sessions.c.id == reference)
    # Before all names, which anybody may choose: those of other sessions' ids too.
    if len(reference) == _LENGTH_OF_AN_ID and connection.execute(sa.select(sessions.c.id).where(of_id)).first():
        return of_id
    named = sa.and_(owned, sa.or_(sessions.c.name == reference, sessions.c.array_name == reference))
    found = _newest(connection, named, reference)
    if not found and len(reference) >= _LEAST_OF_AN_ID and set(reference) <= set("0123456789abcdef-"):
        found = _newest(connection, sa.and_(owned, sessions.c.id.startswith(reference, autoescape=True)), reference)
    if not found:
        raise NotFoundError(f"there is no session {reference!r}; see `muster ls --all`")
    if len(found) > 1:
        ids = ", ".join(row["id"] for row in found)
        raise AmbiguousNameError(f"{reference!r} fits {len(found)} sessions; name one by its id: {ids}")
    (row,) = found
    key = "array_id" if _names_array(row, reference) else "id"
    return sa.and_(owned, sessions.c[key] == row[key])


def _newest(connection: sa.Connection, fits: sa.ColumnElement[bool], reference: str) -> Sequence[sa.RowMapping]:
    """Return the rows that have not ended, or else the newest; one session stands for its array."""
    query = sa.select(*(sessions.c[name] for name in ("id", "name", "array_id", "array_name"))).where(fits)
    oldest_first = query.where(NOT_ENDED).order_by(sessions.c.submitted_at)
    active = connection.execute(oldest_first).mappings().all()
    if not active:
        newest_first = query.order_by(sessions.c.submitted_at.desc(), sessions.c.id.desc())
        return connection.execute(newest_first.limit(1)).mappings().all()
    return list({row["array_id" if _names_array(row, reference) else "id"]: row for row in active}.values())


def _names_array(row: sa.RowMapping, reference: str) -> bool:
    return bool(row["array_name"] == reference != row["name"])


def taken(connection: sa.Connection, names: Sequence[str]) -> set[str]:
    """Return those of the names that belong to a session or an array that has not ended."""
    found: set[str] = set()
    for start in range(0, len(names), _CHUNK):
        these = names[start : start + _CHUNK]
        for column in (sessions.c.name, sessions.c.array_name):
            found.update(connection.execute(sa.select(column).where(column.in_(these), NOT_ENDED)).scalars())
    return found
