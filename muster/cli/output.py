"""Output of the commands: plain columns that awk can read, and the same as JSON."""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

import click

from muster.core.values.units import format_age

if TYPE_CHECKING:  # the views' library loads slowly
    from muster.service.view import View

_Value = TypeVar("_Value")


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print left-aligned columns, two blanks apart; the last is never cut."""
    cells = [list(headers), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    # All lines in one write: each write is a system call.
    click.echo(
        "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        )
    )


def print_json(value: object) -> None:
    """Print plain data and views, also nested ones, as JSON."""
    click.echo(json.dumps(value, indent=2, default=_plain))


def or_dash(value: _Value | None, form: Callable[[_Value], object] = str) -> object:
    """Return a value as it is to be printed, and a dash for None."""
    return "-" if value is None else form(value)


def age(since: float | None) -> object:
    """Return how long ago that was, and a dash for None."""
    return or_dash(since, lambda moment: format_age(moment, time.time()))


def _plain(view: "View") -> object:
    return view.as_json()
