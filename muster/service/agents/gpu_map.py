"""The kernels' parts of GPUs, and how much of their memory is used, as last observed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from muster.contract.manifest import GpuEntry
from muster.contract.report import KernelGpuReport
from muster.core.agents.agent import Agent, Gpu
from muster.core.gpus.access import kernel_gpus
from muster.core.model.reported import reported_kernels
from muster.core.model.session import GpuShare, Kernel, Session
from muster.service.agents.agents import AgentOccupancy


@dataclass(frozen=True, slots=True)
class KernelShare:
    """A kernel's part of one GPU. `used_bytes` is None if it is not known. `enforced_bytes` is the driver's own limit;
    None if it has none.

    `gpu` is None for one that the host has lost; `limit` too, where no container is there to tell it.
    """

    session: Session
    kernel: Kernel
    share: GpuShare
    gpu: Gpu | None
    limit: GpuEntry | None
    used_bytes: int | None
    enforced_bytes: int | None = None

    @property
    def amount(self) -> int:
        """Return the amount in thousandths of a unit, as the GPU is cut now."""
        if self.gpu is None:
            return self.share.amount
        return self.gpu.capacity if self.is_device else self.share.amount_of(self.gpu.capacity)

    @property
    def is_device(self) -> bool:
        """Return whether it is a whole GPU or a MIG instance."""
        return self.share.whole or (self.gpu is not None and self.gpu.exclusive)

    @property
    def compute(self) -> int | None:
        """Return the compute in thousandths of the GPU; None for a device."""
        return self.limit.compute if self.limit else None

    @property
    def mem_bytes(self) -> int | None:
        """Return the memory of the share; None for a device."""
        return self.limit.mem_bytes if self.limit else None


@dataclass(frozen=True, slots=True)
class GpuOccupancy:
    """A GPU of an agent, or a MIG instance of one, with the kernels that share it."""

    agent_id: str
    gpu: Gpu
    held: tuple[KernelShare, ...]
    mem_used_bytes: int | None

    @property
    def free(self) -> int:
        """Return what is free in thousandths of a unit: nothing of one in quarantine."""
        return 0 if self.gpu.quarantine else max(0, self.gpu.capacity - sum(share.amount for share in self.held))


def gpu_occupancies(uses: Iterable[AgentOccupancy]) -> list[GpuOccupancy]:
    """Return every GPU of these agents."""
    found = []
    for use in uses:
        held = [share for session, kernel in use.kernels for share in kernel_shares(session, kernel, use.agent)]
        used = {gpu.uuid: gpu.mem_used_bytes for gpu in use.agent.report.gpus}
        for gpu in use.agent.gpus:
            on_it = tuple(share for share in held if share.share.uuid == gpu.uuid)
            found.append(GpuOccupancy(use.agent.id, gpu, on_it, used.get(gpu.uuid)))
    return found


def session_shares(session: Session, agents: Sequence[Agent]) -> dict[str, list[KernelShare]]:
    """Return shares by kernel id, of kernels that have GPUs on one of these agents."""
    known = {agent.id: agent for agent in agents}
    placed = [
        (k, known[k.allocation.agent_id]) for k in session.kernels if k.allocation and k.allocation.agent_id in known
    ]
    shares = {kernel.id: kernel_shares(session, kernel, agent) for kernel, agent in placed}
    return {kernel_id: held for kernel_id, held in shares.items() if held}


def kernel_shares(session: Session, kernel: Kernel, agent: Agent) -> list[KernelShare]:
    """Return a kernel's shares: as its container says that it was made; without one, as it would be made."""
    gpus = {gpu.uuid: gpu for gpu in agent.gpus}
    made_with = _made_with(session, kernel, agent)
    limits = {limit.uuid: limit for limit in kernel_gpus(agent, kernel) if limit.uuid in gpus}
    for uuid, seen in made_with.items():
        limits[uuid] = GpuEntry(
            uuid=uuid, amount=seen.amount, capacity=seen.capacity, mem_bytes=seen.mem_bytes, compute=seen.compute
        )
    return [
        KernelShare(
            session,
            kernel,
            share,
            gpus.get(share.uuid),
            limits.get(share.uuid),
            used_bytes=of_gpu.used_bytes if (of_gpu := made_with.get(share.uuid)) else None,
            enforced_bytes=of_gpu.enforced_bytes if of_gpu else None,
        )
        for share in (kernel.allocation.gpus if kernel.allocation else ())
    ]


def _made_with(session: Session, kernel: Kernel, agent: Agent) -> dict[str, KernelGpuReport]:
    entry = reported_kernels(session, {agent.id: agent.report}).get(kernel.id)
    return {gpu.uuid: gpu for gpu in entry.gpus} if entry else {}
