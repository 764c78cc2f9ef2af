"""Plots as SVG, drawn by the server: lines over time, and bars.

Every text is escaped here. Series differ by their dashes and names, not by colour alone. For people who cannot see the
plot it has a title, and the page adds its numbers as a table (`numbers`).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from markupsafe import Markup

from muster.core.values.units import spell_bytes

_WIDTH, _HEIGHT = 480, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 8, 10, 24
_MAX_TIMES, _MAX_VALUES = 7, 5
_DAY = 86400
_TIME_STEPS = (60, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY)
_BAR, _BAR_GAP, _LABEL = 12, 14, 18
_KINDS = 6


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of values, and how to write them. `is_binary`: the steps of an axis are powers of two."""

    text: Callable[[float], str]
    is_binary: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """A series of values over time (seconds since the epoch), oldest first; None leaves a gap.

    `kind` is its colour and dashes, 1 to 6; `is_area`: the area below the line is shaded.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    kind: int = 1
    is_area: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A label with a value for each of the names of a bar plot, in their order."""

    label: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The summary of a series; None where it has no values."""

    now: float | None
    mean: float | None
    most: float | None


def _plain(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".") if abs(value) < 1000 else f"{value:,.0f}"


COUNT = Unit(_plain)
CORES = Unit(lambda value: f"{_plain(value)} CPU")
GPUS = Unit(lambda value: f"{_plain(value)} GPU")
HOURS = Unit(lambda value: f"{_plain(value)} h")
BYTES = Unit(spell_bytes, is_binary=True)


def line_plot(series: Sequence[Series], since: float, until: float, unit: Unit, title: str) -> Markup:
    """Return a figure of the series between two times (seconds since the epoch), with an axis in UTC and a key."""
    most = max((value for one in series for _, value in one.points if value is not None), default=0.0)
    steps = value_ticks(most, unit)
    frame = _Frame(since, max(until, since + 1), steps[-1])
    lines = Markup().join(_drawn(one, frame) for one in series)
    return _figure(
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}{}{}</svg>').format(
            _WIDTH, _HEIGHT, title, _value_axis(steps, frame, unit), _time_axis(frame), lines
        ),
        [(one.name, one.kind) for one in series],
    )


def bar_plot(names: Sequence[str], bars: Sequence[Bar], unit: Unit, title: str) -> Markup:
    """Return a figure with a group of bars for each label; `names` are those of the values in each group."""
    most = max((value for bar in bars for value in bar.values), default=0.0) or 1.0
    group = _LABEL + _BAR * max(1, len(names)) + _BAR_GAP
    drawn = Markup().join(_group(bar, number * group, most, unit) for number, bar in enumerate(bars))
    height = max(1, len(bars)) * group
    return _figure(
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(_WIDTH, height, title, drawn),
        [(name, number) for number, name in enumerate(names, start=1)],
    )


def numbers(points: Iterable[tuple[float, float | None]]) -> Numbers:
    """Return the summary of a series; `now` is its last value."""
    values = [value for _, value in points if value is not None]
    if not values:
        return Numbers(None, None, None)
    return Numbers(values[-1], sum(values) / len(values), max(values))


def value_ticks(most: float, unit: Unit) -> list[float]:
    """Return even steps from 0 to the first one that is not below `most`."""
    least = max(most, 1e-9) / _MAX_VALUES
    step = 2.0 ** math.ceil(math.log2(least)) if unit.is_binary else _even(least)
    count = max(1, math.ceil(round(most / step, 6)))
    return [step * number for number in range(count + 1)]


def time_ticks(since: float, until: float) -> list[tuple[float, str]]:
    """Return even times in UTC, each with its text."""
    step = next((step for step in _TIME_STEPS if (until - since) / step <= _MAX_TIMES), None)
    if step is None:
        step = math.ceil((until - since) / _MAX_TIMES / _DAY) * _DAY
    form = "%H:%M" if step < _DAY else "%a %d" if until - since <= 8 * _DAY else "%d %b"
    first = math.ceil(since / step)
    times = (number * step for number in range(first, math.floor(until / step) + 1))
    return [(time, f"{datetime.fromtimestamp(time, UTC):{form}}") for time in times]


@dataclass(frozen=True, slots=True)
class _Frame:
    """A frame that converts times and values to coordinates."""

    since: float
    until: float
    most: float

    def x(self, time: float) -> float:
        return _LEFT + (time - self.since) / (self.until - self.since) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - value / self.most * (_HEIGHT - _TOP - _BOTTOM)


def _even(least: float) -> float:
    """Return the first of …, 0.5, 1, 2, 5, 10, 20, … that is not below `least`."""
    power: float = 10.0 ** math.floor(math.log10(least))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= least * (1 - 1e-9)), 10 * power)


def _value_axis(steps: Sequence[float], frame: _Frame, unit: Unit) -> Markup:
    line = Markup(
        '<line class="plot-grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
        '<text class="plot-text" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
    )
    return Markup().join(
        line.format(_LEFT, _WIDTH - _RIGHT, frame.y(step), frame.y(step), _LEFT - 6, frame.y(step) + 4, unit.text(step))
        for step in steps
    )


def _time_axis(frame: _Frame) -> Markup:
    line = Markup(
        '<line class="plot-grid" x1="{:.1f}" x2="{:.1f}" y1="{}" y2="{}"/>'
        '<text class="plot-text" x="{:.1f}" y="{}" text-anchor="middle">{}</text>'
    )
    bottom = _HEIGHT - _BOTTOM
    return Markup().join(
        line.format(frame.x(time), frame.x(time), bottom, bottom + 4, _within(frame.x(time), label), _HEIGHT - 6, label)
        for time, label in time_ticks(frame.since, frame.until)
    )


def _within(x: float, label: str) -> float:
    """Return where a label begins so that it is not cut at an edge."""
    half = len(label) * 4
    return min(max(x, half), _WIDTH - half)


def _drawn(series: Series, frame: _Frame) -> Markup:
    drawn = Markup()
    kind = (series.kind - 1) % _KINDS + 1
    for run in _runs(series, frame):
        path = " ".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(run))
        if series.is_area:
            down = f"{path} L{run[-1][0]:.1f} {frame.y(0):.1f} L{run[0][0]:.1f} {frame.y(0):.1f} Z"
            drawn += Markup('<path class="plot-area plot-{}" d="{}"/>').format(kind, down)
        drawn += Markup('<path class="plot-line plot-{}" d="{}"/>').format(kind, path)
    return drawn


def _runs(series: Series, frame: _Frame) -> list[list[tuple[float, float]]]:
    """Return the runs of points without a gap; a single point becomes a short line."""
    runs: list[list[tuple[float, float]]] = [[]]
    for time, value in series.points:
        if value is None:
            runs.append([])
        elif frame.since <= time <= frame.until:
            runs[-1].append((frame.x(time), frame.y(value)))
    spaces = [after[0] - before[0] for before, after in pairwise(series.points)]
    half = (frame.x(frame.since + min(spaces)) - frame.x(frame.since)) / 2 if spaces else 2.0
    return [
        run if len(run) > 1 else [(run[0][0] - half, run[0][1]), (run[0][0] + half, run[0][1])] for run in runs if run
    ]


def _group(bar: Bar, top: int, most: float, unit: Unit) -> Markup:
    label = Markup('<text class="plot-text" x="0" y="{}">{}</text>').format(top + _LABEL - 5, bar.label)
    room = _WIDTH - 100
    drawn = Markup(
        '<rect class="plot-bar plot-{}" x="0" y="{}" width="{:.1f}" height="{}"/>'
        '<text class="plot-text" x="{:.1f}" y="{}">{}</text>'
    )
    bars = [
        drawn.format(
            number % _KINDS + 1,
            top + _LABEL + number * _BAR,
            max(0.0, value) / most * room,
            _BAR - 1,
            max(0.0, value) / most * room + 6,
            top + _LABEL + number * _BAR + _BAR - 2,
            unit.text(value),
        )
        for number, value in enumerate(bar.values)
    ]
    return label + Markup().join(bars)


def _figure(picture: Markup, names: Sequence[tuple[str, int]]) -> Markup:
    key = Markup(
        '<li><svg viewBox="0 0 24 10" class="plot-key" aria-hidden="true">'
        '<path class="plot-line plot-{}" d="M0 5 L24 5"/></svg> {}</li>'
    )
    keys = Markup().join(key.format((kind - 1) % _KINDS + 1, name) for name, kind in names)
    return Markup('<figure class="plot">{}<ul class="plot-keys">{}</ul></figure>').format(picture, keys)
