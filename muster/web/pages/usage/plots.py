"""Usage over time as plots, each with a summary in words, and one table of all numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from muster.core.model.agent_sample import Amount
from muster.core.usage.over_time import UsageOverTime
from muster.core.values.units import format_moment
from muster.web.drawing.plots import BYTES, CORES, GPUS, Series, Unit, line_plot, numbers

SPAN_NAMES = {"hour": "last hour", "day": "last day", "week": "last week"}
_PARTS: dict[str, tuple[int, Callable[[Amount], float | None]]] = {
    "used": (1, lambda amount: amount.used),
    "allocated": (2, lambda amount: amount.allocated),
    "capacity": (3, lambda amount: amount.capacity),
}


@dataclass(frozen=True, slots=True)
class _Measure:
    title: str
    unit: Unit
    per_unit: float = 1.0


_MEASURES = {
    "cpu": _Measure("CPU", CORES, 1000.0),
    "mem": _Measure("Memory", BYTES),
    "gpu": _Measure("GPU", GPUS, 1000.0),
    "gpu_mem": _Measure("GPU memory", BYTES),
}


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    picture: Markup
    summary: Sequence[str]


@dataclass(frozen=True, slots=True)
class UsePlots:
    """The plots and their table. A row has a time and a cell for each column; newest first, without gaps."""

    plots: Sequence[Plot]
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


def use_plots(found: UsageOverTime, of: str) -> UsePlots:
    """Return the plots of a usage; `of` says what it is of, such as `agent a1`."""
    measured = {measure: _series(found, measure) for measure in found.measures}
    return UsePlots(
        plots=[_plot(found, measure, series, of) for measure, series in measured.items()],
        columns=[f"{_MEASURES[measure].title} {one.name}" for measure, series in measured.items() for one in series],
        rows=_rows(found, measured),
    )


def _series(found: UsageOverTime, measure: str) -> list[Series]:
    per_unit = _MEASURES[measure].per_unit
    return [
        Series(name, [(at, _scaled(amount, part, per_unit)) for at, amount in found.of(measure)], kind, name == "used")
        for name, (kind, part) in _PARTS.items()
    ]


def _scaled(amount: Amount | None, part: Callable[[Amount], float | None], per_unit: float) -> float | None:
    value = None if amount is None else part(amount)
    return None if value is None else value / per_unit


def _plot(found: UsageOverTime, measure: str, series: Sequence[Series], of: str) -> Plot:
    kind = _MEASURES[measure]
    title = f"{kind.title} of {of}, {SPAN_NAMES[found.span.name]}"
    picture = line_plot(series, found.since, found.until, kind.unit, title)
    return Plot(kind.title, picture, [_summary(one, kind.unit) for one in series])


def _summary(series: Series, unit: Unit) -> str:
    found = numbers(series.points)
    if found.now is None or found.mean is None or found.most is None:
        return f"{series.name.capitalize()}: not known"
    amounts = f"last {unit.text(found.now)}, mean {unit.text(found.mean)}, most {unit.text(found.most)}"
    return f"{series.name.capitalize()}: {amounts}"


def _rows(found: UsageOverTime, measured: dict[str, list[Series]]) -> list[tuple[str, list[str]]]:
    rows = []
    for number, point in reversed(list(enumerate(found.points))):
        if point.amounts is None:
            continue
        cells = []
        for measure, series in measured.items():
            for one in series:
                value = one.points[number][1]
                cells.append("-" if value is None else _MEASURES[measure].unit.text(value))
        rows.append((format_moment(point.at), cells))
    return rows
