"""Events written to sessions, kernels and stories."""

from collections.abc import Mapping, Sequence
from functools import cache

import sqlalchemy as sa

from muster.core.lifecycle.transitions import Event
from muster.store.database.tables import events, kernels, sessions
from muster.store.rows import columns

_CHUNK = 500


def lock(connection: sa.Connection, session_ids: Sequence[str]) -> None:
    """Wait until no other writer changes one of the sessions; SQLite lets one writer in at a time anyway."""
    if connection.dialect.name == "sqlite":
        return
    for start in range(0, len(session_ids), _CHUNK):
        these = sessions.c.id.in_(session_ids[start : start + _CHUNK])
        query = sa.select(sessions.c.id).where(these).order_by(sessions.c.id)
        connection.execute(query.with_for_update(key_share=True)).all()


def apply_one(connection: sa.Connection, event: Event, revision: int) -> bool:
    """Apply an event; return whether its session was still in its `from_state` and as it `expects`."""
    values = {"state": event.to_state.value, "revision": revision, **columns(event.session)}
    if event.in_story:
        values["reason"] = event.reason
    expected = {**columns(event.expects), "id": event.session_id, "state": event.from_state.value}
    if not _change(connection, sessions, expected, values):
        return False
    for kernel_id, changes in event.kernels.items():
        _change(connection, kernels, {"id": kernel_id}, columns(changes))
    if event.in_story:
        line = {"at": event.at, "from_state": event.from_state.value, "to_state": event.to_state.value}
        connection.execute(sa.insert(events).values(session_id=event.session_id, reason=event.reason, **line))
    return True


def _change(
    connection: sa.Connection, table: sa.Table, expected: Mapping[str, object], values: Mapping[str, object]
) -> bool:
    """Set values in the row that is as expected; return whether there is one."""
    named = {f"expected_{name}": value for name, value in expected.items()}
    changed = connection.execute(_update(table, tuple(expected), tuple(values)), {**named, **values})
    return bool(changed.rowcount)


@cache
def _update(table: sa.Table, expected: tuple[str, ...], changed: tuple[str, ...]) -> sa.Update:
    """Return the statement, which costs more to make than to carry out."""
    is_expected = (
        table.c[name].is_not_distinct_from(sa.bindparam(f"expected_{name}", type_=table.c[name].type))
        if table.c[name].nullable
        else table.c[name] == sa.bindparam(f"expected_{name}")
        for name in expected
    )
    return sa.update(table).where(*is_expected).values({name: sa.bindparam(name) for name in changed})
