"""The figures of a simulation."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from muster.core.simulation.simulation import Fate, Life, Simulated
from muster.core.simulation.usage_of_cluster import SLOTS_IN_USE, ClusterUsage

INTERVALS = 48
_ENDED = frozenset({Fate.ENDED, Fate.TIMED_OUT, Fate.PREEMPTED})
SHORTEST_RUN_S = 10.0
"""Runs count as so long at least in bounded slowdowns: otherwise those of a second would make up the mean."""


@dataclass(frozen=True, slots=True)
class Window:
    """The time that figures are about, in seconds on the jobs' clock.

    Without the beginning, while the cluster fills, and the end, while it empties, they show its steady state.
    """

    begins_at: float
    ends_at: float


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of some numbers; of none, all are 0."""

    mean: float
    median: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of the sessions that arrived in a window, and of what was in use in it.

    `use` holds, for each of SLOTS_IN_USE, the mean over time (0 to 1); `over_time` the means of equal intervals.
    `waits` are those of the sessions that started, in seconds until they ran; `gang_waits` those of several kernels.
    `slowdowns` are the bounded slowdowns of the sessions that ended: the wait and the run over the run, which counts
    as `SHORTEST_RUN_S` at least; never below 1 (Feitelson, Metrics for Parallel Job Scheduling, JSSPP 2001). `ended`
    counts those at their time limit too. `preemptions` and `decisions` are those of the whole simulation.
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
    gang_waits: Spread
    slowdowns: Spread
    use: dict[str, float]
    over_time: dict[str, tuple[float, ...]]


def summarize(simulated: Simulated, window: Window | None = None, intervals: int = INTERVALS) -> Summary:
    """Return the figures of the window, or without one of all that was simulated."""
    began, ended = simulated.began_at, simulated.ended_at
    lives = simulated.lives
    if window is not None:
        began, ended = max(began, window.begins_at), min(ended, window.ends_at)
        lives = tuple(life for life in lives if began <= life.session.submitted_at < ended)
    fates = Counter(life.fate for life in lives)
    waits = [(life.waited_s, len(life.session.kernels)) for life in lives if life.waited_s is not None]
    return Summary(
        submitted=len(lives),
        started=sum(life.starts > 0 for life in lives),
        ended=sum(fates[fate] for fate in _ENDED),
        running=fates[Fate.RUNNING],
        waiting=fates[Fate.WAITING],
        never=fates[Fate.NEVER],
        timed_out=fates[Fate.TIMED_OUT],
        preemptions=simulated.preemptions,
        decisions=simulated.decisions,
        span_s=max(0.0, ended - began),
        waits=spread([waited for waited, _ in waits]),
        gang_waits=spread([waited for waited, kernels in waits if kernels > 1]),
        slowdowns=spread([slowdown for slowdown in map(bounded_slowdown, lives) if slowdown is not None]),
        use={name: mean_over(simulated.use, name, began, ended, 1)[0] for name in SLOTS_IN_USE},
        over_time={name: mean_over(simulated.use, name, began, ended, intervals) for name in SLOTS_IN_USE},
    )


def bounded_slowdown(life: Life) -> float | None:
    """Return the bounded slowdown of a session that started and has ended; None for another."""
    if life.started_at is None or life.ended_at is None:
        return None
    run = life.ended_at - life.started_at
    return max(1.0, (life.started_at - life.session.submitted_at + run) / max(run, SHORTEST_RUN_S))


def spread(numbers: Sequence[float]) -> Spread:
    if not numbers:
        return Spread(0.0, 0.0, 0.0, 0.0)
    ordered = sorted(numbers)
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
    for use, next_at in zip(uses, ends, strict=True):
        value, at, until = getattr(use, name), max(use.at, began), min(next_at, ended)
        if at >= until:
            continue
        place = min(intervals - 1, int((at - began) / width))
        while at < until and place < intervals:
            edge = until if place == intervals - 1 else min(until, began + (place + 1) * width)
            sums[place] += value * max(0.0, edge - at)
            at, place = max(at, edge), place + 1
    return tuple(total / width for total in sums)
