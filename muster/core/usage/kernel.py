"""A kernel's usage in one launch: an agent's counters, and what follows from them between observations."""

from dataclasses import dataclass, replace
from typing import TypeVar

from muster.contract.report import UseSample
from muster.core.values.counters import growth_rate

# Between two observations that are closer than this, a rate says little.
_LEAST_ELAPSED_S = 2.0
# No answer is under way for longer. Where more time has passed for the agent, its clock was set.
_MOST_UNDER_WAY_S = 600.0
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class KernelUsage:
    """A kernel's counters since its launch, of generation `generation`; None where its agent cannot measure them.

    `began_at` and `seen_at` are by the control node's clock, `at` by the agent's, all in seconds since the epoch. The
    last three of the amounts are rates as of the last two observations. `cpu_cores` is a number of cores, `gpu_percent`
    the sum over its GPUs. `gpu_seconds` is made of samples: each stands for the time since the one before.
    """

    kernel_id: str
    generation: int
    session_id: str
    began_at: float
    seen_at: float
    at: float
    cpu_seconds: float | None = None
    mem_bytes: int | None = None
    mem_peak_bytes: int | None = None
    net_rx_bytes: int | None = None
    net_tx_bytes: int | None = None
    gpu_seconds: float | None = None
    gpu_percent: float | None = None
    cpu_cores: float | None = None
    net_bytes_per_s: float | None = None
    idle_since: float | None = None

    @property
    def net_bytes(self) -> int | None:
        if self.net_rx_bytes is None or self.net_tx_bytes is None:
            return None
        return self.net_rx_bytes + self.net_tx_bytes


def first_usage(
    kernel_id: str, generation: int, session_id: str, began_at: float, sample: UseSample, now: float
) -> KernelUsage:
    """Return a kernel's usage after its first `sample`: its `use` in a report (docs/agent-contract.md)."""
    use = KernelUsage(kernel_id, generation, session_id, began_at, now, sample.at)
    return _with_counters(use, sample)


def next_usage(before: KernelUsage, sample: UseSample, now: float, *, is_last: bool = False) -> KernelUsage:
    """Return the usage after another observation, or `before` itself if that came too soon after the last.

    `is_last` is of a kernel that has ended: its counters are taken however soon. Where the agent's clock was set in
    between, nobody knows how much time has passed: rates stay as they were, and time is counted from then on.
    """
    elapsed = sample.at - before.at
    counted = _with_counters(before, sample)
    was_set = elapsed < 0 or elapsed > max(0.0, now - before.seen_at) + _MOST_UNDER_WAY_S
    if was_set:
        return replace(counted, at=sample.at, seen_at=max(before.seen_at, now) if is_last else before.seen_at)
    if elapsed < _LEAST_ELAPSED_S and not is_last:
        return before
    use = replace(counted, at=max(before.at, sample.at), seen_at=max(before.seen_at, now))
    percent = sample.gpu_percent
    if percent is not None and elapsed > 0:
        use = replace(use, gpu_seconds=(before.gpu_seconds or 0.0) + percent / 100 * elapsed)
    if elapsed < _LEAST_ELAPSED_S:
        return use
    return replace(
        use,
        gpu_percent=percent,
        cpu_cores=growth_rate(before.cpu_seconds, sample.cpu_seconds, elapsed),
        net_bytes_per_s=growth_rate(before.net_bytes, _net_bytes(sample), elapsed),
    )


def _with_counters(use: KernelUsage, sample: UseSample) -> KernelUsage:
    """Add a sample's counters. They only grow: one that is no longer known, as of a removed container, stays."""
    peaks = (use.mem_peak_bytes, sample.mem_peak_bytes, sample.mem_bytes)
    return replace(
        use,
        cpu_seconds=_most(use.cpu_seconds, sample.cpu_seconds),
        mem_bytes=sample.mem_bytes,
        mem_peak_bytes=_most(*peaks),
        net_rx_bytes=_most(use.net_rx_bytes, sample.net_rx_bytes),
        net_tx_bytes=_most(use.net_tx_bytes, sample.net_tx_bytes),
    )


def _most(*amounts: Number | None) -> Number | None:
    return max((amount for amount in amounts if amount is not None), default=None)


def _net_bytes(sample: UseSample) -> int | None:
    received, sent = sample.net_rx_bytes, sample.net_tx_bytes
    return None if received is None or sent is None else received + sent
