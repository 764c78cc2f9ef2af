"""What is free on an agent, GPU by GPU, so that nothing is promised that the agent cannot give.

A request up to one GPU's worth of fGPU lies on one physical GPU; above that it takes whole GPUs and one remainder.
Shares go to the fullest GPU that still holds them (best fit), whole devices to empty ones.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from muster.core.agent import Agent, Gpu
from muster.core.gpu_shares import packing
from muster.core.session import GpuShare, Kernel
from muster.core.slots import Slots, total


@dataclass(frozen=True, slots=True)
class Room:
    """Free cpu and memory of an agent, and the free amount of each of its GPUs in thousandths of a unit."""

    agent: Agent
    cpu: int
    mem: int
    gpu_free: tuple[int, ...]

    @classmethod
    def of(cls, agent: Agent) -> "Room":
        """The agent with nothing on it."""
        return cls(agent, agent.capacity.cpu, agent.capacity.mem, tuple(gpu.capacity for gpu in agent.gpus))

    @property
    def free(self) -> Slots:
        """In total: a request of fewer fGPU than this may still find no single GPU that holds it."""
        pairs = list(zip(self.agent.gpus, self.gpu_free, strict=True))
        return Slots(
            cpu=self.cpu,
            mem=self.mem,
            gpu=sum(free == gpu.capacity for gpu, free in pairs),
            fgpu=sum(free for gpu, free in pairs if gpu.units),
        )

    def shares_for(self, request: Slots) -> tuple[GpuShare, ...] | None:
        """The GPU shares that would serve `request`; None where cpu, memory or GPUs do not suffice."""
        if request.cpu > self.cpu or request.mem > self.mem:
            return None
        if request.gpu:
            return self._whole(request.gpu, any_gpu=True)
        if request.fgpu:
            return self._fraction(request.fgpu)
        return ()

    def shares_for_all(self, requests: Sequence[Slots]) -> list[tuple[GpuShare, ...]] | None:
        """Shares that serve all the requests together, where one after the other ended in a corner."""
        if not total(requests).fits_in(replace(self.free, gpu=len(self.gpu_free), fgpu=sum(self.gpu_free))):
            return None
        capacity = min((gpu.capacity for gpu in self.agent.gpus if gpu.units), default=0)
        if not capacity:
            return None
        counts = [request.gpu or request.fgpu // capacity for request in requests]
        whole = self._whole(sum(counts), any_gpu=True)
        if whole is None:
            return None
        used = {share.uuid for share in whole}
        others = [(gpu, free) for gpu, free in self._gpus() if gpu.uuid not in used]
        rests = {i: request.fgpu % capacity for i, request in enumerate(requests) if request.fgpu % capacity}
        found = packing(list(rests.values()), [free for _, free in others])
        if found is None:
            return None
        parts = {
            i: (GpuShare(others[gpu][0].uuid, rest, whole=False),)
            for (i, rest), gpu in zip(rests.items(), found, strict=True)
        }
        wholes = iter(whole)
        return [(*islice(wholes, count), *parts.get(i, ())) for i, count in enumerate(counts)]

    def take(self, request: Slots, shares: Iterable[GpuShare]) -> "Room":
        """The room that is left. Raises ValueError when it would be less than nothing."""
        taken = {share.uuid: share.amount for share in shares}
        left = tuple(free - taken.pop(gpu.uuid, 0) for gpu, free in zip(self.agent.gpus, self.gpu_free, strict=True))
        room = replace(self, cpu=self.cpu - request.cpu, mem=self.mem - request.mem, gpu_free=left)
        if taken or min(room.cpu, room.mem, *room.gpu_free) < 0:
            raise ValueError(f"agent {self.agent.id} cannot hold {request}")
        return room

    def without(self, kernels: Iterable[Kernel]) -> "Room":
        """The room less what committed kernels use, even where that is more than the agent has now."""
        room = self
        for kernel in kernels:
            shares = {share.uuid: share for share in kernel.allocation.gpus} if kernel.allocation else {}
            left = tuple(
                max(0, free - _taken(shares[gpu.uuid], gpu)) if gpu.uuid in shares else free
                for gpu, free in room._gpus()
            )
            room = replace(
                room, cpu=max(0, room.cpu - kernel.slots.cpu), mem=max(0, room.mem - kernel.slots.mem), gpu_free=left
            )
        return room

    def _whole(self, count: int, *, any_gpu: bool = False) -> tuple[GpuShare, ...] | None:
        empty = [gpu for gpu, free in self._gpus() if free == gpu.capacity and (any_gpu or gpu.units)]
        if len(empty) < count:
            return None
        return tuple(GpuShare(gpu.uuid, gpu.capacity, whole=True) for gpu in empty[:count])

    def _fraction(self, amount: int) -> tuple[GpuShare, ...] | None:
        capacity = min((gpu.capacity for gpu in self.agent.gpus if gpu.units), default=0)
        if not capacity:
            return None
        whole_count, rest = divmod(amount, capacity)
        whole = self._whole(whole_count)
        if whole is None:
            return None
        if not rest:
            return whole
        used = {share.uuid for share in whole}
        fitting = [
            (free, gpu.index, gpu) for gpu, free in self._gpus() if gpu.units and free >= rest and gpu.uuid not in used
        ]
        if not fitting:
            return None
        _, _, gpu = min(fitting, key=lambda entry: entry[:2])
        return (*whole, GpuShare(gpu.uuid, rest, whole=False))

    def _gpus(self) -> list[tuple[Gpu, int]]:
        return list(zip(self.agent.gpus, self.gpu_free, strict=True))


def _taken(share: GpuShare, gpu: Gpu) -> int:
    """A whole GPU stays whole where the site has since cut its GPUs into other units."""
    return gpu.capacity if share.whole else share.amount
