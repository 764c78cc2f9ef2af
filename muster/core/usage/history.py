"""A kernel's usage over its life: means over steps of one length, which grows with its age, so that they stay few."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.core.usage.kernel import KernelUsage
from muster.core.values.counters import growth_rate

MOST_POINTS = 480
_LEAST_POINTS = 30
_FIRST_STEP_S = 15
# The points of all kernels of a large session.
_MOST_OF_SESSION = 16 * MOST_POINTS
KEPT_S = 90 * 86_400


@dataclass(frozen=True, slots=True)
class UsageStep:
    """Sums over some samples of a kernel from `begins_at` on, and of how many each is made: unknown ones do not count.

    `cpu` is in cores, `mem` in bytes, `gpu` in GPUs.
    """

    kernel_id: str
    generation: int
    session_id: str
    begins_at: int
    cpu: float = 0.0
    cpu_known: int = 0
    mem: float = 0.0
    mem_known: int = 0
    gpu: float = 0.0
    gpu_known: int = 0


@dataclass(frozen=True, slots=True)
class UsagePoint:
    """The means of one step that begins at `at`; None where nothing was known."""

    at: float
    cpu_cores: float | None
    mem_bytes: float | None
    gpus: float | None


def step_s(age_s: float, kernels: int) -> int:
    """Return the length of a step in seconds for a kernel of that age, in a session of so many kernels."""
    most = max(_LEAST_POINTS, min(MOST_POINTS, _MOST_OF_SESSION // max(1, kernels)))
    step = _FIRST_STEP_S
    while age_s > step * most:
        step *= 2
    return step


def is_due(before: KernelUsage | None, use: KernelUsage, step: int) -> bool:
    """Return whether the usage is of another step than what was sampled before."""
    return before is None or _begin(before, step) != _begin(use, step)


def usage_step(before: KernelUsage | None, use: KernelUsage, step: int) -> UsageStep:
    """Return a sample of the usage: rates since what was sampled before, or as of the last two observations."""
    cpu, gpu = use.cpu_cores, None if use.gpu_percent is None else use.gpu_percent / 100
    if before is not None and use.at > before.at:
        elapsed = use.at - before.at
        cpu = growth_rate(before.cpu_seconds, use.cpu_seconds, elapsed)
        # It is unknown until the first sample, which counts nothing yet.
        gpu = growth_rate(before.gpu_seconds or 0.0, use.gpu_seconds, elapsed)
    return UsageStep(
        use.kernel_id,
        use.generation,
        use.session_id,
        _begin(use, step),
        cpu or 0.0,
        int(cpu is not None),
        float(use.mem_bytes or 0),
        int(use.mem_bytes is not None),
        gpu or 0.0,
        int(gpu is not None),
    )


def merged(steps: Iterable[UsageStep], step: int) -> list[UsageStep]:
    """Return a kernel's steps as steps of this length, oldest first."""
    found: list[UsageStep] = []
    for one in sorted(steps, key=lambda one: one.begins_at):
        begins_at = one.begins_at // step * step
        if found and found[-1].begins_at == begins_at:
            found[-1] = _sum(found[-1], one)
        else:
            found.append(_sum(UsageStep(one.kernel_id, one.generation, one.session_id, begins_at), one))
    return found


def points(steps: Sequence[UsageStep], kernels: int) -> list[UsagePoint]:
    """Return the means over a kernel's steps, in a session of so many kernels: no more than are kept."""
    if not steps:
        return []
    few = merged(steps, step_s(steps[-1].begins_at - steps[0].begins_at, kernels))
    return [
        UsagePoint(
            float(one.begins_at),
            _mean(one.cpu, one.cpu_known),
            _mean(one.mem, one.mem_known),
            _mean(one.gpu, one.gpu_known),
        )
        for one in few
    ]


def _begin(use: KernelUsage, step: int) -> int:
    """Return when the step began that the usage was seen in. By the clock, so that two steps make a longer one."""
    return int(use.seen_at // step) * step


def _sum(one: UsageStep, other: UsageStep) -> UsageStep:
    return UsageStep(
        one.kernel_id,
        one.generation,
        one.session_id,
        one.begins_at,
        one.cpu + other.cpu,
        one.cpu_known + other.cpu_known,
        one.mem + other.mem,
        one.mem_known + other.mem_known,
        one.gpu + other.gpu,
        one.gpu_known + other.gpu_known,
    )


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
