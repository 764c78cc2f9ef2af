"""An account of agents' capacity that shares no code with the scheduler, which it judges."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from muster.core.agents.agent import Agent
from muster.core.model.session import AllocatedSlots, Allocation, GpuShare, Kernel
from muster.core.model.wait import NearestMiss
from muster.core.values.slots import Slots


@dataclass
class Ledger:
    """An independent account of what is used on agents, GPU by GPU. `whole` is what each GPU is without any kernel."""

    cpu: dict[str, int]
    mem: dict[str, int]
    gpus: dict[str, dict[str, int]]
    whole: dict[str, dict[str, int]]

    @classmethod
    def of(cls, agents: Iterable[Agent]) -> "Ledger":
        agents = list(agents)
        whole = {a.id: {gpu.uuid: max(gpu.units, 1) * 1000 for gpu in a.gpus} for a in agents}
        return cls(
            {a.id: a.capacity.cpu for a in agents},
            {a.id: a.capacity.mem for a in agents},
            {agent_id: dict(gpus) for agent_id, gpus in whole.items()},
            whole,
        )

    def charge(self, kernel: Kernel) -> None:
        assert kernel.allocation is not None
        agent_id = kernel.allocation.agent_id
        self.cpu[agent_id] -= kernel.slots.cpu
        self.mem[agent_id] -= kernel.slots.mem
        for share in kernel.allocation.gpus:
            # One of which nothing is known has nothing free.
            self.gpus[agent_id].setdefault(share.uuid, 0)
            self.gpus[agent_id][share.uuid] -= self._amount_now(agent_id, share)

    def _amount_now(self, agent_id: str, share: GpuShare) -> int:
        """Return what a share is of its GPU as that is cut now, rounded down so that no sum is too large."""
        whole = self.whole[agent_id].get(share.uuid)
        if whole is None or share.capacity is None:
            return share.amount
        return share.amount * whole // share.capacity

    @property
    def overdrawn(self) -> list[str]:
        return [
            *(f"cpu of {agent}" for agent, free in self.cpu.items() if free < 0),
            *(f"mem of {agent}" for agent, free in self.mem.items() if free < 0),
            *(uuid for gpus in self.gpus.values() for uuid, free in gpus.items() if free < 0),
        ]


def granted(known: Iterable[Agent], used: Iterable[Kernel], miss: NearestMiss) -> AllocatedSlots:
    """Return what an agent would have to get back, for what it lacks to be free: the least used GPUs first."""
    ledger = Ledger.of(known)
    agent = next(agent for agent in known if agent.id == miss.agent_id)
    for kernel in used:
        if kernel.allocation is not None and kernel.allocation.agent_id in ledger.cpu:
            ledger.charge(kernel)
    free = ledger.gpus[agent.id]
    capacity = {gpu.uuid: gpu.capacity for gpu in agent.gpus}
    shares = []
    wholes, rest = miss.missing.get("gpu", 0), miss.missing.get("fgpu", 0)
    for gpu in sorted((gpu for gpu in free if free[gpu] < capacity[gpu]), key=lambda gpu: -free[gpu]):
        amount = capacity[gpu] - free[gpu] if wholes > 0 else min(rest, capacity[gpu] - free[gpu])
        wholes, rest = (wholes - 1, rest) if wholes > 0 else (0, rest - amount)
        if amount:
            shares.append(GpuShare(gpu, amount, whole=False))
    slots = Slots(cpu=miss.missing.get("cpu", 0), mem=miss.missing.get("mem", 0), fgpu=0, gpu=0)
    return AllocatedSlots(slots, Allocation(agent.id, tuple(shares)))


def share_choices(agent: Agent, slots: Slots, free: dict[str, int]) -> list[tuple[GpuShare, ...]]:
    """Return every way in which the agent's GPUs can serve a kernel. Equal GPUs count as one.

    Written from docs, not from muster/core/model/free_capacity.py, which it judges.
    """
    whole = {gpu.uuid: max(gpu.units, 1) * 1000 for gpu in agent.gpus}
    empty = [uuid for uuid, capacity in whole.items() if free[uuid] == capacity]
    if slots.gpu:
        return [tuple(GpuShare(u, whole[u], whole=True) for u in empty[: slots.gpu])] if len(empty) >= slots.gpu else []
    if not slots.fgpu:
        return [()]
    cut = {gpu.uuid for gpu in agent.gpus if gpu.units}
    if not cut:
        return []
    count, rest = divmod(slots.fgpu, whole[next(iter(cut))])
    empty = [uuid for uuid in empty if uuid in cut]
    if len(empty) < count:
        return []
    wholes = tuple(GpuShare(uuid, whole[uuid], whole=True) for uuid in empty[:count])
    if not rest:
        return [wholes]
    others = [uuid for uuid in cut if free[uuid] >= rest and uuid not in empty[:count]]
    by_free = {free[uuid]: uuid for uuid in sorted(others)}
    return [(*wholes, GpuShare(uuid, rest, whole=False)) for uuid in by_free.values()]


def some_arrangement_exists(kernels: Sequence[Kernel], agents: Sequence[Agent], used: Iterable[Kernel] = ()) -> bool:
    """Return whether the kernels fit on the agents together at all, by an exhaustive search for small cases."""
    ledger = Ledger.of(agents)
    for kernel in used:
        ledger.charge(kernel)
    by_id = {agent.id: agent for agent in agents}
    tried: set[object] = set()

    def search(rest: Sequence[Kernel]) -> bool:
        if not rest:
            return True
        state = (
            len(rest),
            *ledger.cpu.values(),
            *ledger.mem.values(),
            *(tuple(g.values()) for g in ledger.gpus.values()),
        )
        if state in tried:
            return False
        tried.add(state)
        kernel, *others = rest
        for agent in by_id.values():
            if kernel.slots.cpu > ledger.cpu[agent.id] or kernel.slots.mem > ledger.mem[agent.id]:
                continue
            for shares in share_choices(agent, kernel.slots, ledger.gpus[agent.id]):
                before = ledger.cpu[agent.id], ledger.mem[agent.id], dict(ledger.gpus[agent.id])
                ledger.charge(replace(kernel, allocation=Allocation(agent.id, shares)))
                found = search(others)
                ledger.cpu[agent.id], ledger.mem[agent.id], ledger.gpus[agent.id] = before
                if found:
                    return True
        return False

    return search(list(kernels))
