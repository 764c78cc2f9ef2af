"""The figures of a simulation."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from muster.core.simulation.simulation import Fate, Simulated
from muster.core.simulation.usage_of_cluster import SLOTS_IN_USE, ClusterUsage

INTERVALS = 48
_ENDED = frozenset({Fate.ENDED, Fate.TIMED_OUT, Fate.PREEMPTED})


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of some seconds; of none, all are 0."""

    mean: float
    median: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a whole simulation.

    `use` holds, for each of SLOTS_IN_USE, the mean over time (0 to 1); `over_time` the means of equal intervals.
    `waits` are those of the sessions that started, until they ran. `ended` counts those at their time limit too.
    """

    submitted: int
    started: int
    ended: int
    running: int
    waiting: int
    never: int
    timed_out: int
    preemptions: int
    decisions: int
    span_s: float
    waits: Spread
    use: dict[str, float]
    over_time: dict[str, tuple[float, ...]]


def summarize(simulated: Simulated, intervals: int = INTERVALS) -> Summary:
    fates = Counter(life.fate for life in simulated.lives)
    began, ended = simulated.began_at, simulated.ended_at
    return Summary(
        submitted=len(simulated.lives),
        started=sum(life.starts > 0 for life in simulated.lives),
        ended=sum(fates[fate] for fate in _ENDED),
        running=fates[Fate.RUNNING],
        waiting=fates[Fate.WAITING],
        never=fates[Fate.NEVER],
        timed_out=fates[Fate.TIMED_OUT],
        preemptions=simulated.preemptions,
        decisions=simulated.decisions,
        span_s=ended - began,
        waits=spread([life.waited_s for life in simulated.lives if life.waited_s is not None]),
        use={name: mean_over(simulated.use, name, began, ended, 1)[0] for name in SLOTS_IN_USE},
        over_time={name: mean_over(simulated.use, name, began, ended, intervals) for name in SLOTS_IN_USE},
    )


def spread(seconds: Sequence[float]) -> Spread:
    if not seconds:
        return Spread(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(seconds)
    return Spread(math.fsum(ordered) / len(ordered), _rank(ordered, 0.5), _rank(ordered, 0.95), ordered[-1])


def _rank(ordered: Sequence[float], part: float) -> float:
    """Return the nearest-rank percentile."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


def mean_over(uses: Sequence[ClusterUsage], name: str, began: float, ended: float, intervals: int) -> tuple[float, ...]:
    """Return the time-weighted means of equal intervals; a step function holds from each use to the next."""
    width = (ended - began) / intervals
    if width <= 0 or not uses:
        return (0.0,) * intervals
    sums = [0.0] * intervals
    ends = [*(use.at for use in uses[1:]), ended]
    for use, until in zip(uses, ends, strict=True):
        value, at = getattr(use, name), max(use.at, began)
        place = min(intervals - 1, int((at - began) / width))
        while at < until and place < intervals:
            edge = until if place == intervals - 1 else min(until, began + (place + 1) * width)
            sums[place] += value * max(0.0, edge - at)
            at, place = max(at, edge), place + 1
    return tuple(total / width for total in sums)
