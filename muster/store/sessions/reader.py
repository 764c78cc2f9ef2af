"""Sessions as the store holds them, read with their kernels and with why they wait."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from muster.core.model.session import Session
from muster.core.model.wait import Wait
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.garbage import without_garbage_collection
from muster.store.database.tables import NOT_ENDED, kernels, sessions
from muster.store.rows import KERNEL_COLUMNS, SESSION_COLUMNS, session_from
from muster.store.sessions.waits import read_waits


def _columns(table: sa.Table, names: Iterable[str]) -> list[sa.ColumnElement[Any]]:
    """Return these columns of a table, those of JSON as text."""
    found = (table.c[name] for name in names)
    return [sa.cast(c, sa.Text).label(c.name) if isinstance(c.type, sa.JSON) else c for c in found]


SELECT = sa.select(*_columns(sessions, SESSION_COLUMNS))
_BY_ID = SELECT.where(sessions.c.id.in_(sa.bindparam("ids", expanding=True)))
_KERNELS = sa.select(*_columns(kernels, KERNEL_COLUMNS)).order_by(kernels.c.rank)
_KERNELS_OF = _KERNELS.where(kernels.c.session_id.in_(sa.bindparam("sessions", expanding=True)))
_KERNELS_OF_ACTIVE = _KERNELS.where(kernels.c.session_id.in_(sa.select(sessions.c.id).where(NOT_ENDED)))
_CHUNK = 500
_MOST_SPECS = 1000
SessionRow = Sequence[Any]
"""A row of SESSION_COLUMNS."""
_ID, _NAME, _SPEC, _WAIT = map(SESSION_COLUMNS.index, ("id", "name", "spec", "wait_id"))


class SessionReader:
    """A reader of sessions. Those of one spec share one value: checking specs is most of what reading costs."""

    def __init__(self) -> None:
        self._specs: dict[str, SessionSpec] = {}

    def read(
        self, connection: sa.Connection, query: sa.Select[Any], values: Mapping[str, Any] | None = None
    ) -> list[Session]:
        """Return the sessions that a SELECT finds with these values."""
        rows = connection.execute(query, values).all()
        return self.made_of(connection, rows, read_waits(connection, wait_ids(rows).values()))

    def of_ids(self, connection: sa.Connection, session_ids: Sequence[str]) -> dict[str, Session]:
        """Return the sessions by id, in the order of the ids; unknown ids are left out."""
        found: dict[str, Session] = {}
        for start in range(0, len(session_ids), _CHUNK):
            these = {"ids": session_ids[start : start + _CHUNK]}
            found |= {session.id: session for session in self.read(connection, _BY_ID, these)}
        return {key: found[key] for key in session_ids if key in found}

    @without_garbage_collection()
    def made_of(
        self, connection: sa.Connection, rows: Sequence[SessionRow], waits: Mapping[int, Wait], *, of_all: bool = False
    ) -> list[Session]:
        """Return the rows' sessions, with their kernels and their `waits`; `of_all`: these are all that are active."""
        members: dict[str, list[Any]] = {row[_ID]: [] for row in rows}
        for kernel in self._kernels_of(list(members), connection, of_all=of_all):
            members[kernel[-1]].append(kernel)
        return [
            session_from(row, members[row[_ID]], self._spec(row[_SPEC], row[_NAME]), waits.get(row[_WAIT]))
            for row in rows
        ]

    @staticmethod
    def _kernels_of(ids: Sequence[str], connection: sa.Connection, *, of_all: bool) -> Iterator[Sequence[Any]]:
        """Yield rows of the sessions' kernels, those of each by rank."""
        if of_all and len(ids) > _CHUNK:
            yield from connection.execute(_KERNELS_OF_ACTIVE)
            return
        for start in range(0, len(ids), _CHUNK):
            yield from connection.execute(_KERNELS_OF, {"sessions": ids[start : start + _CHUNK]})

    def _spec(self, text: str, name: str) -> SessionSpec:
        """Return the spec of a session of this name. Specs that differ in the name alone are checked once."""
        named = f'"name": {json.dumps(name)}'
        others = text.replace(named, "") if text.count(named) == 1 else ""
        if others in self._specs:
            alike = self._specs[others]
            return alike if alike.name == name else alike.model_copy(update={"name": name})
        if text in self._specs:
            return self._specs[text]
        if len(self._specs) >= _MOST_SPECS:
            self._specs.clear()
        spec = SessionSpec.model_validate_json(text)
        # What was cut out may also be the name of a role, where the session's own is an array's.
        self._specs[others if others and spec.name == name else text] = spec
        return spec


def wait_ids(rows: Sequence[SessionRow]) -> dict[str, int]:
    """Return by session id the row of `waits` that says why it waits."""
    return {row[_ID]: row[_WAIT] for row in rows if row[_WAIT] is not None}
