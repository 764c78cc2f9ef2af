"""The means by which kernels get GPU shares: what each needs of a host, and what it adds to a container.

All take plain facts of a report and give plain values; `muster/core/gpus/access.py` makes a manifest's entries of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from muster.contract.report import GpuReport, Report
from muster.core.agents.agent_attributes import AgentAttributes, FgpuCompute, FgpuProvider

FGPU_TREE = "/opt/muster/fgpu"
DRIVER_TREE = "/opt/muster/driver"
MPS_PIPES = "/run/muster-mps/pipe"
MPS_SHM = "/run/muster-mps/shm"
LIMITS_FILE = "fgpu"
_DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# Under other names than its own, so that no loader finds the driver in that folder.
_REAL_LIBRARIES = tuple(f"{DRIVER_TREE}/real-{name}" for name in _DRIVER_LIBRARIES)
# The driver maps memory in pages of this size: a finer cap could not be used up.
_PAGE_BYTES = 2 << 20
WHOLE_MILLI = 1000


@dataclass(frozen=True, slots=True)
class Part:
    """A share of one physical GPU: memory in bytes, compute in thousandths of the GPU. `context_bytes`: what a context
    costs there by measurement. `limit`: the most of its compute, in thousandths; None: all that others leave.
    """

    uuid: str
    mem_bytes: int
    compute: int
    context_bytes: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """A kernel's parts of shared GPUs, one or more, and whether it has whole GPUs beside them.

    `best_effort`: it computes only while those do not to whom compute is guaranteed.
    """

    kernel_id: str
    parts: tuple[Part, ...]
    beside_whole: bool
    best_effort: bool = False


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the host that is mounted in a container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class Delta:
    """The additions to a container beside its devices.

    `libraries` are bound over the driver's of these names, `files` lie in its key directory. `leases` name the GPUs
    whose compute it shares by taking turns.
    """

    libraries: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    usage: bool = False
    leases: tuple[str, ...] = ()


class Provider(Protocol):
    """A means of sharing GPUs."""

    def obstacle(self, report: Report) -> str:
        """Return why GPUs of this host are not cut although the site wants it; empty where all is well."""

    def cuts(self, report: Report, gpu: GpuReport) -> bool:
        """Return whether kernels may have fGPU of this GPU of the report."""

    def delta(self, shared: Shared, attributes: AgentAttributes) -> Delta:
        """Return what the kernel's container needs for its parts.

        Parts may have been promised before the site chose a means without parts. Such a kernel needs the libraries, and
        does not start without.
        """


def quantise(mem_bytes: int, amount: int, capacity: int) -> tuple[int, int]:
    """Return memory and compute of a share, rounded down, so that the shares of a GPU never exceed it.

    A share has some compute, however small it is.
    """
    cap = mem_bytes * amount // capacity
    return cap - cap % _PAGE_BYTES, max(1, WHOLE_MILLI * amount // capacity)


class Shim:
    """A means by libraries before the driver's, which cap memory and take turns computing."""

    def obstacle(self, report: Report) -> str:
        if not report.fgpu:
            return "the libraries that cap GPUs are not there; run playbooks/site.yml with the tag fgpu"
        inside = sorted({gpu.parent_uuid for gpu in report.gpus if gpu.parent_uuid})
        if inside:
            return (
                f"{' and '.join(inside)} in MIG mode has instances only; set fgpu_provider: mig,"
                " or end its MIG mode (nvidia-smi -mig 0)"
            )
        return ""

    def cuts(self, report: Report, gpu: GpuReport) -> bool:
        return bool(report.fgpu) and not gpu.is_instance

    def delta(self, shared: Shared, attributes: AgentAttributes) -> Delta:
        return capped(shared, attributes, attributes.fgpu_compute)


class Mps:
    """The means by NVIDIA's MPS, which shares the compute. Libraries cap the memory: MPS caps single processes."""

    def obstacle(self, report: Report) -> str:
        return SHIM.obstacle(report)

    def cuts(self, report: Report, gpu: GpuReport) -> bool:
        return SHIM.cuts(report, gpu)

    def delta(self, shared: Shared, attributes: AgentAttributes) -> Delta:
        shim = capped(shared, attributes, FgpuCompute.NONE)
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": MPS_PIPES,
            # By UUID: a number, or a GPU that the process does not see, would silently end all limits.
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(
                f"{part.uuid}={part.mem_bytes >> 20}M" for part in shared.parts
            ),
        }
        if not shared.beside_whole:
            # It holds for all devices of a process: a whole GPU would be slowed down too.
            most = min(part.limit or part.compute for part in shared.parts)
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, most // 10))
        if shared.best_effort:
            env["CUDA_MPS_CLIENT_PRIORITY"] = "1"  # below normal
        # Server and clients also meet in their /dev/shm.
        meeting_places = Mount(MPS_PIPES, MPS_PIPES, False), Mount(MPS_SHM, "/dev/shm", False)  # noqa: S108
        return replace(shim, mounts=(*shim.mounts, *meeting_places), env=env)


class Mig:
    """The means by instances that the card makes of itself: a device each, which needs nothing else."""

    def obstacle(self, report: Report) -> str:
        instances = [gpu for gpu in report.gpus if gpu.is_instance]
        if not instances:
            return (
                "no GPU has MIG instances; name them by fgpu_mig_profiles and run playbooks/site.yml with the tag fgpu"
            )
        unsized = [gpu.uuid for gpu in instances if not gpu.fraction]
        if unsized:
            return f"the driver does not say what part of its GPU {unsized[0]} is; a newer driver does"
        return ""

    def cuts(self, report: Report, gpu: GpuReport) -> bool:  # noqa: ARG002 - all are asked alike
        return gpu.is_instance and bool(gpu.fraction)

    def delta(self, shared: Shared, attributes: AgentAttributes) -> Delta:
        return SHIM.delta(shared, attributes)


class Whole:
    """The means without sharing."""

    def obstacle(self, report: Report) -> str:  # noqa: ARG002 - providers share one signature
        return "fgpu_provider is whole, which cuts none; set units_per_gpu: 0, or another fgpu_provider"

    def cuts(self, report: Report, gpu: GpuReport) -> bool:  # noqa: ARG002 - all are asked alike
        return False

    def delta(self, shared: Shared, attributes: AgentAttributes) -> Delta:
        return SHIM.delta(shared, attributes)


def capped(shared: Shared, attributes: AgentAttributes, compute: FgpuCompute) -> Delta:
    """Return the libraries with a limits file."""
    measured = [part.context_bytes for part in shared.parts if part.context_bytes is not None]
    lines = [
        "version 1",
        f"kernel {shared.kernel_id}",
        f"compute {compute}",
        f"context_bytes {max(measured, default=attributes.fgpu_context_bytes)}",
        *(["class best-effort"] if shared.best_effort else []),
        *([f"overcommit {attributes.fgpu_overcommit}"] if overcommits(shared.best_effort, attributes) else []),
        *[f"gpu {part.uuid} {part.mem_bytes} {part.compute}{_limit(part)}" for part in shared.parts],
    ]
    return Delta(
        libraries={name: f"{FGPU_TREE}/lib/{name}" for name in _DRIVER_LIBRARIES},
        # The libraries are linked with the real ones by that path.
        mounts=(Mount(FGPU_TREE, FGPU_TREE, True), *(Mount(path, path, True) for path in _REAL_LIBRARIES)),
        files={LIMITS_FILE: "\n".join(lines) + "\n"},
        usage=True,
        leases=() if compute is FgpuCompute.NONE else tuple(part.uuid for part in shared.parts),
    )


def overcommits(best_effort: bool, attributes: AgentAttributes) -> bool:
    """Return whether a kernel may have more memory than its share, as managed memory."""
    return best_effort and attributes.fgpu_overcommit > WHOLE_MILLI


def _limit(part: Part) -> str:
    return "" if part.limit is None else f" {part.limit}"


SHIM = Shim()
PROVIDERS: Mapping[FgpuProvider, Provider] = {
    FgpuProvider.SHIM: SHIM,
    FgpuProvider.MPS: Mps(),
    FgpuProvider.MIG: Mig(),
    FgpuProvider.WHOLE: Whole(),
}
