"""How full a simulated cluster is, change by change, and how much of its free capacity no request can use."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.core.agents.agent import Agent, Gpu
from muster.core.model.session import Kernel
from muster.core.scheduling.placement import Constraint, Typical
from muster.core.values.slots import Slots


@dataclass(frozen=True, slots=True)
class ClusterUsage:
    """The usage from `at` until the next one: what is taken, as parts of all agents' (0 to 1).

    `gpu` counts whole GPUs and shares alike. `fragmented` is the part of all GPUs that is free, but not for the
    requests that this workload typically makes. It is F of Weng et al., USENIX ATC 2023, over the requests for GPUs.
    """

    at: float
    cpu: float
    mem: float
    gpu: float
    fragmented: float


SLOTS_IN_USE = ("cpu", "mem", "gpu", "fragmented")


class _Free:
    """The free capacity of one agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.cpu = agent.capacity.cpu
        self.mem = agent.capacity.mem
        self.gpus = {gpu.uuid: gpu.capacity for gpu in agent.gpus}
        self.kind = tuple((gpu.model, gpu.units) for gpu in agent.gpus)
        self.fragmented = 0.0


class ClusterUsageMeter:
    """A meter of what kernels take, independent of the scheduler's own counts."""

    def __init__(self, agents: Sequence[Agent], typical: Sequence[Typical], began_at: float) -> None:
        self._free = {agent.id: _Free(agent) for agent in agents}
        self._typical = [request for request in typical if request.slots.gpu or request.slots.fgpu]
        self._weights = sum(request.weight for request in self._typical)
        self._usable: dict[tuple[object, ...], tuple[float, tuple[float, ...]]] = {}
        self._capacity = {gpu.uuid: gpu.capacity for agent in agents for gpu in agent.gpus}
        self._all = Slots(
            cpu=sum(agent.capacity.cpu for agent in agents),
            mem=sum(agent.capacity.mem for agent in agents),
            gpu=len(self._capacity),
        )
        self._cpu = self._mem = 0
        self._gpus = 0.0
        self._fragmented = 0.0
        self._stale = set(self._free)
        self._uses: list[ClusterUsage] = []
        self._at = began_at

    def take(self, kernels: Iterable[Kernel], at: float) -> None:
        self._move(kernels, at, -1)

    def release(self, kernels: Iterable[Kernel], at: float) -> None:
        self._move(kernels, at, 1)

    def until(self, ended_at: float) -> tuple[ClusterUsage, ...]:
        """Return all uses that began before `ended_at`."""
        self._record()
        return tuple(use for use in self._uses if use.at < ended_at)

    def _move(self, kernels: Iterable[Kernel], at: float, sign: int) -> None:
        if at > self._at:
            self._record()
            self._at = at
        for kernel in kernels:
            if kernel.allocation is None:
                continue
            free = self._free[kernel.allocation.agent_id]
            self._stale.add(kernel.allocation.agent_id)
            free.cpu += sign * kernel.slots.cpu
            free.mem += sign * kernel.slots.mem
            self._cpu -= sign * kernel.slots.cpu
            self._mem -= sign * kernel.slots.mem
            for share in kernel.allocation.gpus:
                capacity = self._capacity[share.uuid]
                amount = share.amount_of(capacity)
                free.gpus[share.uuid] += sign * amount
                self._gpus -= sign * amount / capacity

    def _record(self) -> None:
        """Record the use since the last change."""
        for agent_id in sorted(self._stale):
            free = self._free[agent_id]
            fragmented = self._fragmented_on(free)
            self._fragmented += fragmented - free.fragmented
            free.fragmented = fragmented
        self._stale.clear()
        gpus = self._all.gpu or 1
        self._uses.append(
            ClusterUsage(
                self._at,
                cpu=self._cpu / (self._all.cpu or 1),
                mem=self._mem / (self._all.mem or 1),
                gpu=self._gpus / gpus,
                fragmented=self._fragmented / gpus,
            )
        )

    def _fragmented_on(self, free: _Free) -> float:
        """Return the GPUs' worth of free capacity that a typical request is expected not to be able to use."""
        if not self._weights or not free.gpus:
            return 0.0
        worth, usable = self._usable_on(free)
        used = sum(
            part
            for part, request in zip(usable, self._typical, strict=True)
            if part and request.slots.cpu <= free.cpu and request.slots.mem <= free.mem
        )
        return worth - used

    def _usable_on(self, free: _Free) -> tuple[float, tuple[float, ...]]:
        """Return the worth of the agent's free GPUs, and what of it each request could use.

        That is by the request's weight, were there cpu and memory. Agents are often in a state in which one was before.
        """
        key = (free.kind, *free.gpus.values())
        known = self._usable.get(key)
        if known is None:
            gpus = [(gpu, free.gpus[gpu.uuid]) for gpu in free.agent.gpus if free.gpus[gpu.uuid] > 0]
            parts = tuple(_usable(gpus, request) * request.weight / self._weights for request in self._typical)
            known = self._usable[key] = (_worth(gpus), parts)
        return known


def _usable(gpus: Sequence[tuple[Gpu, int]], request: Typical) -> float:
    """Return the worth of the free GPUs that the request could use; nothing where there are too few."""
    slots, takes = request.slots, Constraint(gpu_models=request.gpu_models).takes_model
    of_model = [(gpu, amount) for gpu, amount in gpus if takes(gpu.model)]
    if slots.gpu:
        whole = [(gpu, amount) for gpu, amount in of_model if amount == gpu.capacity]
        return _worth(whole) if len(whole) >= slots.gpu else 0.0
    cut = [(gpu, amount) for gpu, amount in of_model if gpu.units]
    if not cut:
        return 0.0
    count, rest = divmod(slots.fgpu, cut[0][0].capacity)
    whole = [(gpu, amount) for gpu, amount in cut if amount == gpu.capacity]
    if len(whole) < count:
        return 0.0
    if count:
        fits = not rest or len(whole) > count or any(rest <= amount < gpu.capacity for gpu, amount in cut)
        return _worth(whole) if fits else 0.0
    return _worth([(gpu, amount) for gpu, amount in cut if amount >= rest])


def _worth(gpus: Iterable[tuple[Gpu, int]]) -> float:
    return sum(amount / gpu.capacity for gpu, amount in gpus)
