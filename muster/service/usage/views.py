"""Views of usage: of one session's runs, of everybody's over a time, and of this moment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Self

from pydantic import Field

from muster.core.model.agent_sample import MEASURES, Amount
from muster.core.model.session import Session
from muster.core.usage.history import UsageStep, points
from muster.core.usage.kernel import KernelUsage
from muster.core.usage.over_time import UsageOverTime
from muster.core.usage.report import Line
from muster.service.view import Moment, View

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from muster.service.usage.live import CurrentUsage

_DIGITS = 6


class KernelUsageView(View):
    """The usage of a kernel in one launch."""

    kernel: str | None
    run: int = Field(description="the launch's generation: it goes up with each launch")
    began_at: Moment
    seen_at: Moment
    cpu_seconds: float | None
    mem_bytes: int | None
    mem_peak_bytes: int | None
    net_rx_bytes: int | None
    net_tx_bytes: int | None
    gpu_seconds: float | None
    idle_since: Moment | None

    @classmethod
    def of(cls, use: KernelUsage, names: Mapping[str, str]) -> Self:
        """Return the view; `names` are the kernels' by id."""
        return cls(
            kernel=names.get(use.kernel_id),
            run=use.generation,
            began_at=use.began_at,
            seen_at=use.seen_at,
            cpu_seconds=use.cpu_seconds,
            mem_bytes=use.mem_bytes,
            mem_peak_bytes=use.mem_peak_bytes,
            net_rx_bytes=use.net_rx_bytes,
            net_tx_bytes=use.net_tx_bytes,
            gpu_seconds=use.gpu_seconds,
            idle_since=use.idle_since,
        )


class UsageMeanView(View):
    """The mean usage of a kernel over one step; null where it is not known."""

    at: Moment
    cpu_cores: float | None
    mem_bytes: float | None
    gpus: float | None = Field(description="GPUs that were busy: 0.5 is half of one")


class KernelHistoryView(View):
    """The usage of a kernel over one launch."""

    kernel: str | None
    run: int = Field(description="the launch's generation")
    points: list[UsageMeanView] = Field(description="at most 481, at even distances, oldest first")


class SessionHistoryView(View):
    """The usage of a session's kernels over its life: runs oldest first, each by its kernels' ranks."""

    items: list[KernelHistoryView]

    @classmethod
    def of(cls, session: Session, steps: Iterable[UsageStep]) -> Self:
        """Return the view of a session's steps, which come oldest first."""
        kernels = {kernel.id: kernel for kernel in session.possible_kernels}
        runs: dict[tuple[int, str], list[UsageStep]] = {}
        for step in steps:
            runs.setdefault((step.generation, step.kernel_id), []).append(step)
        ordered = sorted(runs, key=lambda run: (run[0], kernels[run[1]].rank if run[1] in kernels else len(kernels)))
        return cls(
            items=[
                KernelHistoryView(
                    kernel=kernels[kernel_id].name if kernel_id in kernels else None,
                    run=generation,
                    points=[
                        UsageMeanView(**asdict(point))
                        for point in points(runs[generation, kernel_id], len(session.kernels))
                    ],
                )
                for generation, kernel_id in ordered
            ]
        )


def session_usage_views(session: Session, uses: Iterable[KernelUsage]) -> list[KernelUsageView]:
    """Return the usage of all the session's runs, the oldest first, each by its kernels' ranks."""
    names = {kernel.id: kernel.name for kernel in session.possible_kernels}
    ranks = {kernel.id: kernel.rank for kernel in session.possible_kernels}
    ordered = sorted(uses, key=lambda use: (use.generation, ranks.get(use.kernel_id, len(ranks))))
    return [KernelUsageView.of(use, names) for use in ordered]


class TotalsView(View):
    """The sums of one line; hours are of one core, one GiB, one GPU, one fGPU unit. Waits are those that ended."""

    sessions: int = 0
    kernels: int = 0
    cpu_hours_allocated: float = 0.0
    cpu_hours_used: float = 0.0
    mem_gib_hours_allocated: float = 0.0
    mem_peak_bytes: int = Field(default=0, description="of the largest session")
    gpu_hours_allocated: float = 0.0
    fgpu_hours_allocated: float = 0.0
    gpu_hours_used: float = 0.0
    waits: int = 0
    wait_s: float = 0.0
    longest_wait_s: float = 0.0

    @property
    def mean_wait_s(self) -> float | None:
        """Return the mean wait; None where none has ended."""
        return self.wait_s / self.waits if self.waits else None


AMOUNTS = tuple(TotalsView.model_fields)


class ReportLineView(TotalsView):
    """A line of the usage report: the keys that it is about, and their totals. Other keys are left out."""

    user: str | None = None
    project: str | None = None
    day: str | None = None
    session: str | None = None

    @classmethod
    def of(cls, line: Line, by: Sequence[str]) -> Self:
        totals = asdict(line.totals)
        amounts = {name: round(value, _DIGITS) if isinstance(value, float) else value for name, value in totals.items()}
        return cls(**dict(zip(by, line.keys, strict=True)), **amounts)

    def keys(self, by: Sequence[str]) -> tuple[str, ...]:
        """Return the keys that `by` names, in that order."""
        return tuple(getattr(self, key) or "" for key in by)


class ReportView(View):
    """The usage report."""

    since: Moment
    until: Moment
    by: list[str]
    lines: list[ReportLineView]

    @classmethod
    def of(cls, since: float, until: float, by: Sequence[str], lines: Iterable[Line] = ()) -> Self:
        """Return the view of lines by the keys `by`, over a time in seconds since the epoch."""
        return cls(since=since, until=until, by=list(by), lines=[ReportLineView.of(line, by) for line in lines])


class CurrentUsageView(View):
    """The usage of a kernel at this moment."""

    session: str
    session_id: str
    owner: str
    kernel: str
    agent: str
    cpu_cores: float | None
    cpu_cores_allocated: float
    mem_bytes: int | None
    mem_bytes_allocated: int
    net_rx_bytes: int | None
    net_tx_bytes: int | None
    net_rx_bytes_per_s: float | None
    net_tx_bytes_per_s: float | None
    gpu_percent: float | None
    gpu_mem_bytes: int | None
    processes: int | None
    problem: str | None

    @classmethod
    def of(cls, now: "CurrentUsage") -> Self:
        use, allocation = now.use, now.kernel.allocation
        return cls(
            session=now.session.name,
            session_id=now.session.id,
            owner=now.session.owner,
            kernel=now.kernel.name,
            agent=allocation.agent_id if allocation else "",
            cpu_cores=use.cpu_cores if use else None,
            cpu_cores_allocated=now.kernel.slots.cpu / 1000,
            mem_bytes=use.mem_bytes if use else None,
            mem_bytes_allocated=now.kernel.slots.mem,
            net_rx_bytes=use.net_rx_bytes if use else None,
            net_tx_bytes=use.net_tx_bytes if use else None,
            net_rx_bytes_per_s=now.net_rx_per_s,
            net_tx_bytes_per_s=now.net_tx_per_s,
            gpu_percent=now.gpu_percent,
            gpu_mem_bytes=now.gpu_mem_bytes,
            processes=use.processes if use else None,
            problem=now.problem or None,
        )


class CurrentUsagesView(View):
    items: list[CurrentUsageView]


class UsagePointView(View):
    """The means over one step; all null if no agent was observed."""

    at: Moment = Field(description="begin of the step")
    cpu: Amount | None = Field(description="in thousandths of a core")
    mem: Amount | None = Field(description="in bytes")
    gpu: Amount | None = Field(description="in thousandths of a GPU")
    gpu_mem: Amount | None = Field(description="in bytes")


class UsageOverTimeView(View):
    span: str
    step_s: int
    since: Moment
    until: Moment
    points: list[UsagePointView]

    @classmethod
    def of(cls, found: UsageOverTime) -> Self:
        points = [
            UsagePointView(at=point.at, **{name: (point.amounts or {}).get(name) for name in MEASURES})
            for point in found.points
        ]
        return cls(span=found.span.name, step_s=found.span.step_s, since=found.since, until=found.until, points=points)
