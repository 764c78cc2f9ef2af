"""Sessions as the commands print them: rows of a table, or a line for each."""

from collections.abc import Iterable, Sequence

import click

from muster.cli.output import age
from muster.core.model.session import SessionState
from muster.core.values.array import format_indexes
from muster.core.values.slots import format_slots
from muster.service.sessions.views import SessionView, why_text

SESSION_HEADERS = ("ID", "NAME", "OWNER", "TYPE", "STATE", "SIZE", "RESOURCES", "AGENTS", "AGE", "REASON")


def session_rows(sessions: Iterable[SessionView]) -> list[list[object]]:
    """Return a row for each session, and one row for those of an array that differ only in their indexes."""
    alike: dict[tuple[object, ...], list[SessionView]] = {}
    for session in sessions:
        row = _session_row(session)
        key = (session.array_id or session.id, *row[2:])
        alike.setdefault(key, []).append(session)
    return [[same[0].id[:8], name_of(same), *key[1:]] for key, same in alike.items()]


def name_of(same: Sequence[SessionView]) -> str:
    """Return the session's name; for several of one array a name such as `train-[0-9]`."""
    if len(same) == 1:
        return same[0].name
    return f"{same[0].array_name}-[{format_indexes(s.array_index for s in same if s.array_index is not None)}]"


def print_states(changed: Iterable[SessionView]) -> None:
    """Print a line for each session, and one line for those of an array that are in the same state."""
    alike: dict[tuple[str, str], list[SessionView]] = {}
    for session in changed:
        held = f", held by {session.held_by}" if session.held_by and session.state is SessionState.PENDING else ""
        alike.setdefault((session.array_id or session.id, f"{session.state}{held}"), []).append(session)
    for (_, state), same in alike.items():
        click.echo(f"{name_of(same)} is {state}" if len(same) == 1 else f"{name_of(same)}: {len(same)} are {state}")


def _session_row(session: SessionView) -> list[object]:
    return [
        session.id[:8],
        session.name,
        session.owner,
        session.type,
        session.state + (f" ({session.result})" if session.result else ""),
        session.size,
        format_slots(session.slots),
        ",".join(session.agents) or "-",
        age(session.submitted_at),
        why_text(session) if session.wait or session.reason else "-",
    ]
