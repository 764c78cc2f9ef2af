"""Events written to sessions, kernels and stories."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby

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


def apply_all(connection: sa.Connection, changes: Iterable[Event], revision: int) -> list[Event]:
    """Apply each event whose session is still in its `from_state` and as it `expects`; return those."""
    applied = [event for event in changes if _apply_to_session(connection, event, revision)]
    of_kernels = [
        {"expected_id": kernel_id, **columns(changes)}
        for event in applied
        for kernel_id, changes in event.kernels.items()
    ]
    # Many rows at once, in their order: a statement costs more than its rows.
    for names, rows in groupby(of_kernels, key=tuple):
        connection.execute(_update(kernels, ("id",), names[1:]), list(rows))
    if lines := [_story_line(event) for event in applied if event.in_story]:
        connection.execute(sa.insert(events), lines)
    return applied


def _apply_to_session(connection: sa.Connection, event: Event, revision: int) -> bool:
    """Change the session's row; return whether it was still as the event expects."""
    values = {"state": event.to_state.value, "revision": revision, **columns(event.session)}
    if event.in_story:
        values["reason"] = event.reason
    expected = {**columns(event.expects), "id": event.session_id, "state": event.from_state.value}
    named = {f"expected_{name}": value for name, value in expected.items()}
    changed = connection.execute(_update(sessions, tuple(expected), tuple(values)), {**named, **values})
    return bool(changed.rowcount)


def _story_line(event: Event) -> dict[str, object]:
    return {
        "session_id": event.session_id,
        "at": event.at,
        "from_state": event.from_state.value,
        "to_state": event.to_state.value,
        "reason": event.reason,
    }


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
