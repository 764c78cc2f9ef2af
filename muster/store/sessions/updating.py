"""Another spec for sessions that wait: in their rows, their kernels' rows and their stories."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import sqlalchemy as sa

from muster.core.model.session import FINAL, Session, SessionState
from muster.core.values.errors import FieldError, SpecError
from muster.store.database.tables import events, kernels, sessions
from muster.store.rows import kernel_rows, session_row
from muster.store.sessions.applying import lock
from muster.store.sessions.reader import SessionReader

_CHUNK = 500
_DEPENDENCIES = ("after", "after_ok", "after_any")
# The name is left to renames, which may have come in between.
_WRITTEN = "spec", "resource_group", "project", "folders", "attempts", "retry_at", "failed_on", "extended_s", "updates"


@dataclass(frozen=True, slots=True)
class Update:
    """A pending session before it is updated and as it shall be, with what its story says of that."""

    before: Session
    after: Session
    reason: str


def apply_updates(
    connection: sa.Connection, reader: SessionReader, updates: Sequence[Update], now: float, revision: int
) -> list[Update]:
    """Apply the updates of sessions that still wait, and were not updated since they were read; return those.

    The caller has raised the sessions' revision. Raises SpecError where a session would wait for itself.
    """
    by_id = {update.before.id: update for update in updates}
    lock(connection, sorted(by_id))
    applied = [by_id[session_id] for session_id in _unchanged(connection, by_id)]
    _check_waits_end(connection, reader, [update.after for update in applied if _waits_for_others(update)])
    for update in applied:
        _write(connection, update, now, revision)
    return applied


def _unchanged(connection: sa.Connection, by_id: Mapping[str, Update]) -> list[str]:
    """Return the ids of the sessions that are as they were read, as far as an update goes."""
    ids = sorted(by_id)
    found: list[str] = []
    for start in range(0, len(ids), _CHUNK):
        these = sessions.c.id.in_(ids[start : start + _CHUNK]), sessions.c.state == SessionState.PENDING.value
        columns = sessions.c.id, sessions.c.updates, sessions.c.requeues
        for row in connection.execute(sa.select(*columns).where(*these).order_by(sessions.c.id)):
            before = by_id[row.id].before
            if (row.updates, row.requeues) == (before.updates, before.requeues):
                found.append(row.id)
    return found


def _write(connection: sa.Connection, update: Update, now: float, revision: int) -> None:
    after = update.after
    this = sessions.c.id == after.id
    (stored,) = connection.execute(sa.select(sessions.c.spec).where(this)).one()
    row = session_row(after)
    values = {name: row[name] for name in _WRITTEN}
    values["spec"] = {**row["spec"], "name": stored["name"]}
    connection.execute(
        sa.update(sessions).where(this).values(**values, reason=update.reason, wait_id=None, revision=revision)
    )
    if update.before.possible_kernels != after.possible_kernels:
        connection.execute(sa.delete(kernels).where(kernels.c.session_id == after.id))
        connection.execute(sa.insert(kernels), kernel_rows(after))
    state = SessionState.PENDING.value
    line = {"session_id": after.id, "at": now, "from_state": state, "to_state": state, "reason": update.reason}
    connection.execute(sa.insert(events).values(line))


def _waits_for_others(update: Update) -> bool:
    return not set(update.after.spec.dependencies) <= set(update.before.spec.dependencies)


def _check_waits_end(connection: sa.Connection, reader: SessionReader, changed: Sequence[Session]) -> None:
    """Raises SpecError where one of the changed sessions would wait for itself, be it by way of others."""
    graph: dict[str, Collection[str]] = {session.id: session.spec.dependencies for session in changed}
    unknown = _unknown(graph, graph)
    while unknown:
        found = reader.of_ids(connection, unknown)
        graph |= {key: () if one.state in FINAL else one.spec.dependencies for key, one in found.items()}
        unknown = _unknown(graph, found)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        by_id = {session.id: session for session in changed}
        # Each but the first waits for the one before it.
        circle: list[str] = error.args[1]
        waiting, first = next((by_id[one], before) for before, one in pairwise(circle) if one in by_id)
        field = next(name for name in _DEPENDENCIES if first in getattr(waiting.spec, name))
        problem = f"session {waiting.name} would wait for itself"
        raise SpecError([FieldError(field, problem, "let one of them wait for nothing")]) from None


def _unknown(graph: Mapping[str, Collection[str]], new: Iterable[str]) -> list[str]:
    """Return the sessions that the new ones of a graph wait for, and that it does not have yet."""
    return sorted({key for one in new for key in graph[one] if key not in graph})
