"""What an agent had at one time, what of it was allocated, and what its kernels really used."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.contract.report import Report, UseSample
from muster.core.agents.agent import UNIT, Agent, Gpu
from muster.core.model.free_capacity import FreeCapacity
from muster.core.model.session import Kernel
from muster.core.values.counters import growth_rate

# `cpu` and `gpu` are in thousandths of a core and of a GPU, `mem` and `gpu_mem` in bytes. A share of a GPU counts as
# its part of it, so that agents whose GPUs are cut differently can be added up.
MEASURES = ("cpu", "mem", "gpu", "gpu_mem")
SAMPLE_S = 60
# Closer together, what was used between two reports says little; further apart, it says too little of when.
_LEAST_ELAPSED_S = 10.0
_MOST_ELAPSED_S = 600.0
_UNKNOWN = UseSample(at=0)


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount: what there is, what is allocated, and what is used (None if no agent reported it)."""

    capacity: float
    allocated: float
    used: float | None


@dataclass(frozen=True, slots=True)
class AgentSample:
    """A sample of an agent. `at` is in seconds since the epoch; `amounts` are by MEASURES."""

    agent_id: str
    resource_group: str
    at: float
    amounts: Mapping[str, Amount]


@dataclass(frozen=True, slots=True)
class Counted:
    """The CPU counters of an agent's kernels in one report, by kernel and launch: the agent's time, and seconds."""

    at: float
    kernels: Mapping[tuple[str, int], tuple[float, float]]


def counted(report: Report, now: float) -> Counted:
    kernels = {
        (entry.kernel_id, entry.generation): (entry.use.at, entry.use.cpu_seconds)
        for entry in report.kernels
        if entry.use is not None and entry.use.cpu_seconds is not None
    }
    return Counted(now, kernels)


def is_due(last: float | None, now: float) -> bool:
    """Return whether a new minute of the clock has begun: a sample in each leaves none of a plot's minutes empty."""
    return last is None or (now // SAMPLE_S > last // SAMPLE_S and now - last >= _LEAST_ELAPSED_S) or now < last


def sample(agent: Agent, kernels: Iterable[Kernel], before: Counted | None) -> AgentSample:
    """Measure an agent. `kernels` are those placed on it, `before` is the count of its last sample."""
    remaining = FreeCapacity.of(agent).without(kernels)
    running = [entry for entry in agent.report.kernels if entry.state == "running"]
    uses = [entry.use or _UNKNOWN for entry in running]
    on_gpus = [entry.use or _UNKNOWN for entry in running if entry.gpus]
    parts = [
        (gpu, (gpu.capacity - free) / gpu.capacity) for gpu, free in zip(agent.gpus, remaining.gpu_free, strict=True)
    ]
    busy = _known_sum(use.gpu_percent for use in on_gpus)
    held = [gpu.mem_used_bytes for gpu in agent.report.gpus]
    return AgentSample(
        agent.id,
        agent.resource_group,
        agent.observed_at,
        {
            "cpu": Amount(agent.capacity.cpu, agent.capacity.cpu - remaining.cpu, _cpu_used(agent, before)),
            "mem": Amount(
                agent.capacity.mem, agent.capacity.mem - remaining.mem, _known_sum(use.mem_bytes for use in uses)
            ),
            "gpu": Amount(
                sum(_devices(gpu) for gpu in agent.gpus),
                sum(_devices(gpu) * part for gpu, part in parts),
                None if busy is None else busy * UNIT / 100,
            ),
            "gpu_mem": Amount(
                sum(gpu.mem for gpu in agent.gpus), sum(gpu.mem * part for gpu, part in parts), _known_sum(held)
            ),
        },
    )


def _devices(gpu: Gpu) -> int:
    """Return thousandths of a GPU: an instance is a part of one."""
    return gpu.fraction if gpu.exclusive else UNIT


def _cpu_used(agent: Agent, before: Counted | None) -> float | None:
    """Return thousandths of a core, on average since `before`."""
    now = counted(agent.report, agent.observed_at)
    running = [entry for entry in agent.report.kernels if entry.state == "running"]
    if not running:
        return 0.0
    elapsed = 0.0 if before is None else now.at - before.at
    if not now.kernels or before is None or not _LEAST_ELAPSED_S <= elapsed <= _MOST_ELAPSED_S:
        return None
    return _known_sum(_cores(now.kernels[key], before.kernels.get(key), elapsed) for key in now.kernels)


def _cores(now: tuple[float, float], before: tuple[float, float] | None, elapsed: float) -> float | None:
    """Return the kernel's cores; one that was not there before has used all of it since."""
    if before is None:
        return now[1] / elapsed * UNIT
    cores = growth_rate(before[1], now[1], now[0] - before[0])
    return None if cores is None else cores * UNIT


def _known_sum(amounts: Iterable[float | None]) -> float | None:
    """Return the sum of the amounts that are known: 0 if there are no amounts, None if none of them is known."""
    all_amounts = list(amounts)
    known = [amount for amount in all_amounts if amount is not None]
    return sum(known) if known or not all_amounts else None
