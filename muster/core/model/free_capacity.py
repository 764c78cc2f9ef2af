"""What is free on an agent, for people to look at: placing is the business of muster/core/scheduling/placement."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from muster.core.agents.agent import Agent, Gpu
from muster.core.model.session import GpuShare, Kernel
from muster.core.values.slots import Slots


@dataclass(frozen=True, slots=True)
class FreeCapacity:
    """The free cpu and memory of an agent, and the free amount of each of its GPUs in thousandths of a unit."""

    agent: Agent
    cpu: int
    mem: int
    gpu_free: tuple[int, ...]

    @classmethod
    def of(cls, agent: Agent) -> "FreeCapacity":
        """Return the agent's capacity with nothing on it."""
        return cls(agent, agent.capacity.cpu, agent.capacity.mem, tuple(gpu.capacity for gpu in agent.gpus))

    @property
    def free(self) -> Slots:
        """Return the free slots in total: a request of fewer fGPU may still find no single GPU that holds it.

        A GPU in quarantine has none.
        """
        pairs = [(gpu, free) for gpu, free in self._gpus() if not gpu.quarantine]
        return Slots(
            cpu=self.cpu,
            mem=self.mem,
            gpu=sum(free == gpu.capacity for gpu, free in pairs if not gpu.exclusive),
            fgpu=sum(free for gpu, free in pairs if gpu.units),
        )

    def without(self, kernels: Iterable[Kernel]) -> "FreeCapacity":
        """Return this less what committed kernels use, even where that is more than the agent has now."""
        remaining = self
        for kernel in kernels:
            shares = {share.uuid: share for share in kernel.allocation.gpus} if kernel.allocation else {}
            left = tuple(
                max(0, free - _taken(shares[gpu.uuid], gpu)) if gpu.uuid in shares else free
                for gpu, free in remaining._gpus()
            )
            remaining = replace(
                remaining,
                cpu=max(0, remaining.cpu - kernel.slots.cpu),
                mem=max(0, remaining.mem - kernel.slots.mem),
                gpu_free=left,
            )
        return remaining

    def _gpus(self) -> list[tuple[Gpu, int]]:
        return list(zip(self.agent.gpus, self.gpu_free, strict=True))


def _taken(share: GpuShare, gpu: Gpu) -> int:
    return gpu.capacity if gpu.exclusive else share.amount_of(gpu.capacity)
