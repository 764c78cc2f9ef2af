"""Add up usage over a time: of each run, the part that lies in that time.

Sums are additive: those of the parts of a time add up to those of the whole. Where a run lies in several parts, its
usage is spread evenly over it, since agents report how much it was, not when.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from muster.core.values.slots import Slots

KEYS = ("user", "project", "day", "session")
_HOUR = 3600.0
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class RunUsage:
    """A session's run with the sums of its kernels' amounts. Times are in seconds since the epoch.

    `cpu_seconds` and `gpu_seconds` are None where no agent reported them. `is_first` marks the session's first run,
    which ends its wait.
    """

    session_id: str
    session_name: str
    user: str
    project: str
    submitted_at: float
    started_at: float
    ended_at: float
    kernels: int
    slots: Slots
    array_id: str | None = None
    array_name: str | None = None
    cpu_seconds: float | None = None
    gpu_seconds: float | None = None
    mem_peak_bytes: int | None = None
    is_first: bool = True


@dataclass(slots=True)
class Totals:
    """The sums of one line; hours are of one core, one GiB, one GPU, one fGPU unit. Waits are those that ended."""

    sessions: int = 0
    kernels: int = 0
    cpu_hours_allocated: float = 0.0
    cpu_hours_used: float = 0.0
    mem_gib_hours_allocated: float = 0.0
    mem_peak_bytes: int = 0
    gpu_hours_allocated: float = 0.0
    fgpu_hours_allocated: float = 0.0
    gpu_hours_used: float = 0.0
    waits: int = 0
    wait_s: float = 0.0
    longest_wait_s: float = 0.0

    def add(self, run: RunUsage, part: float, hours: float) -> None:
        """Add `part` of the run, which is that many hours long."""
        self.cpu_hours_allocated += run.slots.cpu / 1000 * hours
        self.cpu_hours_used += (run.cpu_seconds or 0.0) / _HOUR * part
        self.mem_gib_hours_allocated += run.slots.mem / _GIB * hours
        self.mem_peak_bytes = max(self.mem_peak_bytes, run.mem_peak_bytes or 0)
        self.gpu_hours_allocated += run.slots.gpu * hours
        self.fgpu_hours_allocated += run.slots.fgpu / 1000 * hours
        self.gpu_hours_used += (run.gpu_seconds or 0.0) / _HOUR * part

    def add_wait(self, seconds: float) -> None:
        self.waits += 1
        self.wait_s += seconds
        self.longest_wait_s = max(self.longest_wait_s, seconds)


@dataclass(frozen=True, slots=True)
class Line:
    """The totals of one combination of keys, in the order in which the keys were named."""

    keys: tuple[str, ...]
    totals: Totals


def usage_report(runs: Iterable[RunUsage], since: float, until: float, by: Sequence[str]) -> list[Line]:
    """Return the lines by the KEYS that `by` names; without any, one line for all.

    A session's runs must come one after the other. Memory grows with the lines, not with the runs.
    """
    lines: dict[tuple[str, ...], Totals] = {}
    last: dict[tuple[str, ...], str] = {}
    for run in runs:
        for begin, end, day in _parts(run, since, until, by_day="day" in by):
            keys = _keys(run, by, day)
            totals = lines.setdefault(keys, Totals())
            if last.get(keys) != run.session_id:
                last[keys] = run.session_id
                totals.sessions += 1
                totals.kernels += run.kernels
            length = run.ended_at - run.started_at
            totals.add(run, (end - begin) / length if length > 0 else 1.0, (end - begin) / _HOUR)
            if run.is_first and begin == run.started_at:
                totals.add_wait(max(0.0, run.started_at - run.submitted_at))
    return [Line(keys, lines[keys]) for keys in sorted(lines)]


def _keys(run: RunUsage, by: Sequence[str], day: str) -> tuple[str, ...]:
    # The sessions of an array are one line, by the name and the id that stand for all of them.
    session = f"{run.array_name or run.session_name} {(run.array_id or run.session_id)[:8]}"
    values = {"user": run.user, "project": run.project, "day": day, "session": session}
    return tuple(values[key] for key in by)


def _parts(run: RunUsage, since: float, until: float, *, by_day: bool) -> Iterator[tuple[float, float, str]]:
    """Yield the run's parts within the time, cut at midnights (UTC) with `by_day`.

    A run without length counts where it began: a part includes its begin, and excludes its end.
    """
    begin, end = max(run.started_at, since), min(run.ended_at, until)
    is_moment = run.started_at >= run.ended_at and since <= run.started_at < until
    if begin >= end and not is_moment:
        return
    end = max(begin, end)
    if not by_day:
        yield begin, end, ""
        return
    while True:
        day = datetime.fromtimestamp(begin, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        midnight = (day + timedelta(days=1)).timestamp()
        yield begin, min(end, midnight), f"{day:%Y-%m-%d}"
        if end <= midnight:
            return
        begin = midnight
