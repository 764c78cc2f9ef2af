"""Usage over time: points at even distances, gaps where nothing was observed, and their summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.core.model.agent_sample import MEASURES, Amount
from muster.core.values.errors import BadInputError


@dataclass(frozen=True, slots=True)
class Span:
    """A plot's length: the last `length_s`, in points of `step_s` each. Rows of that step are kept for `kept_s`."""

    name: str
    length_s: int
    step_s: int
    kept_s: int


SPANS = {
    "hour": Span("hour", 3600, 60, 2 * 3600),
    "day": Span("day", 86_400, 900, 2 * 86_400),
    "week": Span("week", 7 * 86_400, 3600, 8 * 86_400),
}


@dataclass(frozen=True, slots=True)
class Point:
    """The mean over one step that begins at `at`; None where nothing was observed."""

    at: float
    amounts: Mapping[str, Amount] | None


@dataclass(frozen=True, slots=True)
class UsageOverTime:
    """A plot's points from `since` to `until`, in seconds since the epoch."""

    span: Span
    since: float
    until: float
    points: tuple[Point, ...]

    def of(self, measure: str) -> list[tuple[float, Amount | None]]:
        return [(point.at, point.amounts[measure] if point.amounts else None) for point in self.points]

    @property
    def measures(self) -> tuple[str, ...]:
        """Return the measures that have any capacity in these points."""
        observed = [point.amounts for point in self.points if point.amounts]
        return tuple(measure for measure in MEASURES if any(amounts[measure].capacity for amounts in observed))


def span_named(name: str) -> Span:
    """Return the span of that name. Raises BadInputError where there is none."""
    if name not in SPANS:
        raise BadInputError(f"span: there is no {name!r}; write {', '.join(SPANS)}")
    return SPANS[name]


def added(parts: Sequence[Mapping[str, Amount]]) -> dict[str, Amount]:
    """Return the sum of several amounts. Of usage, only known amounts count."""
    summed = {}
    for measure in MEASURES:
        amounts = [part[measure] for part in parts]
        used = [amount.used for amount in amounts if amount.used is not None]
        capacity, allocated = (sum(getattr(a, name) for a in amounts) for name in ("capacity", "allocated"))
        summed[measure] = Amount(capacity, allocated, sum(used) if used else None)
    return summed


def usage_over_time(span: Span, rows: Mapping[int, Mapping[str, Amount]], now: float) -> UsageOverTime:
    """Return the points of `rows`, which are keyed by the time at which they begin.

    The last point is of the step that has not ended yet, if it is known.
    """
    last = int(now // span.step_s) * span.step_s
    count = span.length_s // span.step_s
    begin = last - (count - 1 if last in rows else count) * span.step_s
    times = [begin + number * span.step_s for number in range(count)]
    return UsageOverTime(span, begin, begin + span.length_s, tuple(Point(at, rows.get(at)) for at in times))
