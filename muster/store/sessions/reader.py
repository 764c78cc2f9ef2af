"""Sessions as the store holds them, read with their kernels and with why they wait."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from muster.core.model.session import Session
from muster.core.model.wait import Wait
from muster.core.spec.session_spec import SessionSpec
from muster.store.database.tables import kernels, sessions
from muster.store.rows import Row, session_from
from muster.store.sessions.waits import read_waits

# The spec as text, since most specs were read before.
SELECT = sa.select(
    *(c for c in sessions.c if c is not sessions.c.spec), sa.cast(sessions.c.spec, sa.Text).label("spec")
)
_BY_ID = SELECT.where(sessions.c.id.in_(sa.bindparam("ids", expanding=True)))
_KERNELS = (
    sa.select(kernels)
    .where(kernels.c.session_id.in_(sa.bindparam("sessions", expanding=True)))
    .order_by(kernels.c.rank)
)
_CHUNK = 500
_MOST_SPECS = 1000


class SessionReader:
    """A reader of sessions. Those of one spec share one value: checking specs is most of what reading costs."""

    def __init__(self) -> None:
        self._specs: dict[str, SessionSpec] = {}

    def read(
        self, connection: sa.Connection, query: sa.Select[Any], values: Mapping[str, Any] | None = None
    ) -> list[Session]:
        """Return the sessions that a SELECT finds with these values."""
        rows = connection.execute(query, values).mappings().all()
        return self.made_of(connection, rows, read_waits(connection, wait_ids(rows).values()))

    def of_ids(self, connection: sa.Connection, session_ids: Sequence[str]) -> dict[str, Session]:
        """Return the sessions by id, in the order of the ids; unknown ids are left out."""
        found: dict[str, Session] = {}
        for start in range(0, len(session_ids), _CHUNK):
            these = {"ids": session_ids[start : start + _CHUNK]}
            found |= {session.id: session for session in self.read(connection, _BY_ID, these)}
        return {key: found[key] for key in session_ids if key in found}

    def made_of(self, connection: sa.Connection, rows: Sequence[Row], waits: Mapping[int, Wait]) -> list[Session]:
        """Return the rows' sessions, with their kernels and their `waits`."""
        members: dict[str, list[Any]] = {row["id"]: [] for row in rows}
        ids = list(members)
        for start in range(0, len(ids), _CHUNK):
            for kernel in connection.execute(_KERNELS, {"sessions": ids[start : start + _CHUNK]}).mappings():
                members[kernel["session_id"]].append(kernel)
        return [
            session_from(row, members[row["id"]], self._spec(row["spec"], row["name"]), waits.get(row["wait_id"]))
            for row in rows
        ]

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


def wait_ids(rows: Sequence[Row]) -> dict[str, int]:
    """Return by session id the row of `waits` that says why it waits."""
    return {row["id"]: row["wait_id"] for row in rows if row["wait_id"] is not None}
