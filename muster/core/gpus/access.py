"""What a kernel's container gets of the host's GPUs: this module alone decides it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from muster.core.model.agent import Agent
from muster.core.model.agent_attributes import AgentAttributes, FgpuDevices, agent_attributes
from muster.core.model.gpu_providers import PROVIDERS, Delta, Part, Shared, quantise
from muster.core.model.session import GpuShare, Kernel


@dataclass(frozen=True, slots=True)
class KernelGpu:
    """A kernel's part of one GPU; with `mem_bytes` and `compute` None the whole device."""

    uuid: str
    mem_bytes: int | None
    compute: int | None


@dataclass(frozen=True, slots=True)
class GpuAccess:
    """A manifest's entries for one kernel; `access` is None for one without GPUs."""

    gpus: tuple[KernelGpu, ...]
    access: Mapping[str, Any] | None
    files: Mapping[str, str]


def gpu_access(agent: Agent, kernel: Kernel) -> GpuAccess:
    gpus = kernel_gpus(agent, kernel)
    if not gpus:
        return GpuAccess((), None, {})
    attributes, _ = agent_attributes(agent.report.get("attributes", {}))
    parts = tuple(Part(g.uuid, g.mem_bytes, g.compute or 0) for g in gpus if g.mem_bytes is not None)
    shared = Shared(kernel.id, parts, beside_whole=len(parts) < len(gpus))
    delta = PROVIDERS[attributes.fgpu_provider].delta(shared, attributes) if parts else Delta()
    access = {
        "devices": _devices(gpus, attributes),
        "libraries": dict(delta.libraries),
        "mounts": [asdict(mount) for mount in delta.mounts],
        "env": dict(delta.env),
        "usage": delta.usage,
        "leases": list(delta.leases),
    }
    return GpuAccess(gpus, access, delta.files)


def kernel_gpus(agent: Agent, kernel: Kernel) -> tuple[KernelGpu, ...]:
    """Return the kernel's parts of this agent's GPUs, as these are cut now, by its allocation."""
    shares = kernel.allocation.gpus if kernel.allocation else ()
    return tuple(_kernel_gpu(agent, share) for share in shares)


def _kernel_gpu(agent: Agent, share: GpuShare) -> KernelGpu:
    gpu = next((gpu for gpu in agent.gpus if gpu.uuid == share.uuid), None)
    if share.whole or (gpu and gpu.exclusive):
        return KernelGpu(share.uuid, None, None)
    if gpu is None:
        # The host has lost it since: its engine will say so, and what starts even so gets none of its memory.
        return KernelGpu(share.uuid, 0, 1)
    # The site may have cut it into fewer units since.
    return KernelGpu(share.uuid, *quantise(gpu.mem, min(share.amount, gpu.capacity), gpu.capacity))


def _devices(gpus: tuple[KernelGpu, ...], attributes: AgentAttributes) -> dict[str, Any]:
    uuids = [gpu.uuid for gpu in gpus]
    if attributes.fgpu_devices is FgpuDevices.CDI:
        return {"driver": "cdi", "ids": [f"nvidia.com/gpu={uuid}" for uuid in uuids]}
    return {"driver": "nvidia", "ids": uuids}
