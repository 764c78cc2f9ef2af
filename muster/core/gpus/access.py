"""What a kernel's container gets of the host's GPUs: this module alone decides it."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from muster.contract.manifest import DevicesEntry, GpuAccessEntry, GpuEntry, HostMountEntry
from muster.core.agents.agent import Agent, Gpu
from muster.core.agents.agent_attributes import FgpuDevices
from muster.core.agents.gpu_providers import PROVIDERS, WHOLE_MILLI, Delta, Part, Shared, quantise
from muster.core.model.session import GpuShare, Kernel
from muster.core.spec.session_spec import SessionSpec

# The kind of the devices in the specification that roles/fgpu writes.
CDI_KIND = "muster/gpu"


@dataclass(frozen=True, slots=True)
class GpuAccess:
    """A manifest's entries for one kernel; `access` is None for one without GPUs."""

    gpus: tuple[GpuEntry, ...]
    access: GpuAccessEntry | None
    files: Mapping[str, str]


def gpu_access(agent: Agent, kernel: Kernel, spec: SessionSpec) -> GpuAccess:
    """Return what a kernel gets of the agent's GPUs; its session's spec says on what terms."""
    gpus = kernel_gpus(agent, kernel)
    if not gpus:
        return GpuAccess((), None, {})
    attributes = agent.attributes
    by_uuid = {gpu.uuid: gpu for gpu in agent.gpus}
    more = 0 if spec.fgpu_limit is None else max(0, spec.fgpu_limit - kernel.slots.fgpu)
    parts = tuple(
        _part(gpu, gpu.mem_bytes, by_uuid.get(gpu.uuid), None if spec.fgpu_limit is None else more)
        for gpu in gpus
        if gpu.mem_bytes is not None
    )
    shared = Shared(kernel.id, parts, beside_whole=len(parts) < len(gpus), best_effort=spec.best_effort)
    delta = PROVIDERS[attributes.fgpu_provider].delta(shared, attributes) if parts else Delta()
    access = GpuAccessEntry(
        devices=_devices(gpus, agent),
        libraries=dict(delta.libraries),
        mounts=tuple(HostMountEntry(**asdict(mount)) for mount in delta.mounts),
        env=dict(delta.env),
        usage=delta.usage,
        leases=delta.leases,
    )
    return GpuAccess(gpus, access, delta.files)


def _cdi_gives(agent: Agent, uuids: Iterable[str]) -> bool:
    """Return whether the engine gives these GPUs by CDI, and not the container toolkit by its hook."""
    devices = agent.attributes.fgpu_devices
    if devices is FgpuDevices.AUTO:
        return set(uuids) <= set(agent.report.gpu_cdi or ())
    return devices is FgpuDevices.CDI


def _part(entry: GpuEntry, mem_bytes: int, gpu: Gpu | None, more: int | None) -> Part:
    """Return a part whose limit is `more` thousandths of a unit above it; None: it has no limit."""
    compute = entry.compute or 0
    limit = None if more is None or gpu is None else compute + WHOLE_MILLI * more // (entry.capacity or gpu.capacity)
    return Part(
        entry.uuid,
        mem_bytes,
        compute,
        context_bytes=gpu.context_bytes if gpu else None,
        limit=limit if limit is not None and limit < WHOLE_MILLI else None,
    )


def kernel_gpus(agent: Agent, kernel: Kernel) -> tuple[GpuEntry, ...]:
    """Return the kernel's parts of this agent's GPUs, as these were cut when it got them."""
    shares = kernel.allocation.gpus if kernel.allocation else ()
    return tuple(_kernel_gpu(agent, share) for share in shares)


def _kernel_gpu(agent: Agent, share: GpuShare) -> GpuEntry:
    gpu = next((gpu for gpu in agent.gpus if gpu.uuid == share.uuid), None)
    amount, capacity = (None, None) if share.whole else (share.amount, share.capacity)
    if share.whole or (gpu and gpu.exclusive):
        return GpuEntry(uuid=share.uuid, amount=amount, capacity=capacity, mem_bytes=None, compute=None)
    if gpu is None:
        # The host has lost it since. The engine will refuse the launch, or else the container gets none of its memory.
        return GpuEntry(uuid=share.uuid, amount=amount, capacity=capacity, mem_bytes=0, compute=1)
    of = share.capacity or gpu.capacity
    # Without its capacity, it may be more than the site has cut the GPU into since.
    mem_bytes, compute = quantise(gpu.mem, min(share.amount, of), of)
    return GpuEntry(uuid=share.uuid, amount=amount, capacity=capacity, mem_bytes=mem_bytes, compute=compute)


def _devices(gpus: tuple[GpuEntry, ...], agent: Agent) -> DevicesEntry:
    uuids = tuple(gpu.uuid for gpu in gpus)
    if _cdi_gives(agent, uuids):
        return DevicesEntry(driver="cdi", ids=tuple(f"{CDI_KIND}={uuid}" for uuid in uuids))
    return DevicesEntry(driver="nvidia", ids=uuids)
