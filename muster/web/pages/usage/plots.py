"""Usage over time as plots, each with a summary in words, and one table of all numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from muster.core.model.agent_sample import Amount
from muster.core.usage.over_time import UsageOverTime
from muster.core.values.units import format_moment
from muster.service.usage.views import KernelHistoryView
from muster.web.drawing.plots import BYTES, CORES, GPUS, Series, Unit, line_plot, numbers

# Of a table of a whole life.
_MOST_ROWS = 60
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


def history_plots(kernels: Sequence[KernelHistoryView], of: str, runs: Sequence[int]) -> UsePlots:
    """Return the plots of kernels' lives, a line for each kernel; `of` is the session's name.

    `runs` are the session's runs, the oldest first. Lines are told apart by them if there are several.
    """
    times = [point.at for kernel in kernels for point in kernel.points]
    if not times:
        return UsePlots((), (), ())
    measured = {
        measure: [_history(kernel, measure, number, runs) for number, kernel in enumerate(kernels, start=1)]
        for measure in ("cpu", "mem", "gpu")
    }
    known = {
        measure: series
        for measure, series in measured.items()
        if any(value is not None for one in series for _, value in one.points)
    }
    plots = []
    for measure, series in known.items():
        kind = _MEASURES[measure]
        picture = line_plot(series, min(times), max(times), kind.unit, f"{kind.title} of {of} over its life")
        plots.append(Plot(kind.title, picture, [_summary(one, kind.unit) for one in series]))
    return UsePlots(
        plots=plots,
        columns=[f"{_MEASURES[measure].title} {one.name}" for measure, series in known.items() for one in series],
        rows=_history_rows(known),
    )


def _history(kernel: KernelHistoryView, measure: str, number: int, runs: Sequence[int]) -> Series:
    field = {"cpu": "cpu_cores", "mem": "mem_bytes", "gpu": "gpus"}[measure]
    name = kernel.kernel or "a container of before"
    if len(runs) > 1:
        name += f", run {runs.index(kernel.run) + 1} of {len(runs)}"
    return Series(name, [(point.at, getattr(point, field)) for point in kernel.points], number)


def _history_rows(measured: dict[str, list[Series]]) -> list[tuple[str, list[str]]]:
    """Return rows of times at which anything is known, newest first: all of them, or some at even distances."""
    columns = [(_MEASURES[measure].unit, dict(one.points)) for measure, series in measured.items() for one in series]
    times = sorted({at for _, values in columns for at in values}, reverse=True)
    rows = []
    for at in times[:: -(-len(times) // _MOST_ROWS) or 1]:
        cells = ["-" if (value := values.get(at)) is None else unit.text(value) for unit, values in columns]
        rows.append((format_moment(at), cells))
    return rows


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
