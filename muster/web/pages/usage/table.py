"""A usage report as a table, as bars and as CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from muster.core.values.units import format_duration, format_hours, spell_bytes
from muster.service.usage.views import AMOUNTS, ReportLineView, TotalsView
from muster.web.drawing.plots import HOURS, Bar, bar_plot
from muster.web.pages.usage.query import COLUMNS, UsageQuery

MOST_ROWS = 500
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


@dataclass(frozen=True, slots=True)
class Row:
    """A line's keys and amounts as texts."""

    keys: tuple[str, ...]
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A table; `total` is None if sums make no sense, `left_out` the number of lines without a row."""

    rows: Sequence[Row]
    total: Row | None
    left_out: int


def table_of(lines: Sequence[ReportLineView], query: UsageQuery) -> Table:
    ordered = in_order(lines, query)
    rows = [Row(line.keys(query.by), _cells(line)) for line in ordered[:MOST_ROWS]]
    return Table(rows, _total(lines, query) if len(lines) > 1 else None, max(0, len(ordered) - MOST_ROWS))


def in_order(lines: Sequence[ReportLineView], query: UsageQuery) -> list[ReportLineView]:
    """Return the lines sorted by the query's column, and by their keys where that is equal."""
    if query.column in query.by:
        place = query.by.index(query.column)
        return sorted(lines, key=lambda line: line.keys(query.by)[place], reverse=query.descending)
    if query.column not in {column.name for column in COLUMNS}:
        return list(lines)
    return sorted(lines, key=lambda line: _amount(line, query.column), reverse=query.descending)


def bars_of(lines: Sequence[ReportLineView], query: UsageQuery) -> Markup | None:
    """Return bars of CPU and GPU hours, allocated and used, of the first lines."""
    if not lines:
        return None
    has_gpus = any(line.gpu_hours_allocated or line.fgpu_hours_allocated for line in lines)
    names = ["CPU hours allocated", "CPU hours used"]
    names += ["GPU hours allocated", "fGPU hours allocated", "GPU hours used"] if has_gpus else []
    shown = in_order(lines, query)[: max_bars(query)]
    bars = [Bar(" · ".join(key or "-" for key in line.keys(query.by)), _hours(line)[: len(names)]) for line in shown]
    return bar_plot(names, bars, HOURS, "Hours of CPU and GPU")


def max_bars(query: UsageQuery) -> int:
    """Return the most bars: a month of them where a line is a day."""
    return 31 if query.by == ("day",) else 15


def csv_of(lines: Sequence[ReportLineView], query: UsageQuery) -> str:
    """Return CSV with a header; an apostrophe before a text that a spreadsheet would take for a formula."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*query.by, *AMOUNTS], lineterminator="\r\n")
    writer.writeheader()
    for line in in_order(lines, query):
        writer.writerow({name: _cell(value) for name, value in line.as_json().items()})
    return out.getvalue()


def _cell(value: Any) -> Any:  # noqa: ANN401 - numbers stay numbers
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _amount(totals: TotalsView, column: str) -> float:
    if column == "mean_wait_s":
        return totals.mean_wait_s or 0.0
    return float(getattr(totals, column))


def _hours(totals: TotalsView) -> tuple[float, ...]:
    return (
        totals.cpu_hours_allocated,
        totals.cpu_hours_used,
        totals.gpu_hours_allocated,
        totals.fgpu_hours_allocated,
        totals.gpu_hours_used,
    )


def _cells(totals: TotalsView) -> tuple[str, ...]:
    return tuple(_text(column.name, totals) for column in COLUMNS)


def _text(column: str, totals: TotalsView) -> str:
    amount = _amount(totals, column)
    if column == "sessions":
        return str(totals.sessions)
    if column == "mem_peak_bytes":
        return spell_bytes(totals.mem_peak_bytes) if totals.mem_peak_bytes else "-"
    if column in {"mean_wait_s", "longest_wait_s"}:
        return format_duration(amount) if totals.waits else "-"
    return format_hours(amount)


def _total(lines: Sequence[ReportLineView], query: UsageQuery) -> Row:
    """Return the row of sums. Sessions are not summed over days, where one counts several times."""
    largest = {"mem_peak_bytes", "longest_wait_s"}
    sums = {name: (max if name in largest else sum)(getattr(line, name) for line in lines) for name in AMOUNTS}
    cells = _cells(TotalsView(**sums))
    return Row(("All",), ("", *cells[1:]) if "day" in query.by else cells)
