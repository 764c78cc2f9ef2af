"""How things look: plain columns that awk can read, and the same as JSON."""

import json
import time
from collections.abc import Iterable, Sequence

import click

from muster.core.duration import format_duration
from muster.core.session import Session
from muster.core.slots import format_slots


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Left-aligned columns, two blanks apart; the last is never cut."""
    cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for row in cells:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


def age(since: float | None) -> str:
    return "-" if since is None else format_duration(max(0.0, time.time() - since))


def why_text(session: Session) -> str:
    """One line: why it waits, or why it is as it is."""
    return str(session.wait.get("message") or session.reason or "it was just submitted; the next pass looks at it")


def session_row(session: Session) -> list[object]:
    return [
        session.id[:8],
        session.name,
        session.owner,
        "batch" if session.spec.is_batch else "interactive",
        session.state + (f" ({session.result})" if session.result else ""),
        len(session.kernels),
        format_slots(session.slots),
        ",".join(session.agents) or "-",
        age(session.submitted_at),
        why_text(session) if session.wait or session.reason else "-",
    ]


SESSION_HEADERS = ("ID", "NAME", "OWNER", "TYPE", "STATE", "SIZE", "RESOURCES", "AGENTS", "AGE", "REASON")
