"""Check that containers keep to their GPU shares, by what the host's NVML says of their processes, and are on GPUs in
service.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.contract.report import KernelGpuReport
from muster.core.agents.agent import Agent
from muster.core.agents.agent_attributes import FgpuOverCap
from muster.core.agents.gpu_providers import WHOLE_MILLI
from muster.core.model.reported import Reports, reported_kernels
from muster.core.model.session import Kernel, Session
from muster.core.values.units import spell_bytes

# NVML counts what the driver needs for each process as well, of which the libraries charge a calibrated estimate. So
# this is for each process, and a program of many processes is not ended for a small error in the estimate.
TOLERANCE_BYTES = 64 << 20
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class GpuFinding:
    """A problem with a kernel's use of GPUs, for its user; `ends` says whether its session is to end for that.

    Problems that begin with the same `topic` are the same problem: amounts in it change all the time.
    """

    problem: str
    topic: str
    ends: bool = False


def gpu_findings(session: Session, reports: Reports, agents: Mapping[str, Agent]) -> dict[str, GpuFinding | None]:
    """Return the findings by kernel id; None where all is well.

    `reports` and `agents` are by agent id. Kernels that the reports do not cover are left out.
    """
    entries = reported_kernels(session, reports)
    found = {}
    for kernel in session.kernels:
        entry = entries.get(kernel.id)
        if entry is None or entry.state != "running" or not entry.gpus:
            continue
        agent = agents.get(kernel.allocation.agent_id) if kernel.allocation else None
        ends = agent is not None and agent.attributes.fgpu_over_cap is FgpuOverCap.END
        factor = agent.attributes.fgpu_overcommit if agent and session.spec.best_effort else WHOLE_MILLI
        finding = _other_gpus(kernel, entry.gpus) or _over_share(kernel, entry.gpus, factor, ends=ends)
        finding = finding or _uncapped(kernel, entry.uncapped, ends=ends)
        finding = finding or _in_quarantine(kernel, agent)
        if finding or all(gpu.used_bytes is not None for gpu in _capped(entry.gpus)):
            found[kernel.id] = finding
    return found


def end_of_problem(kernel: Kernel) -> str:
    """Return the line for a story where the kernel's recorded GPU problem is over."""
    if (kernel.gpu_problem or "").startswith(_quarantine_topic(kernel)):
        return f"{kernel.name} has all of its GPUs in service again"
    return f"{kernel.name} keeps to its share of GPUs again"


def _in_quarantine(kernel: Kernel, agent: Agent | None) -> GpuFinding | None:
    """Return a finding where a GPU of the kernel gets no new sessions; it goes on itself."""
    if agent is None or kernel.allocation is None:
        return None
    promised = {share.uuid for share in kernel.allocation.gpus}
    for gpu in agent.gpus:
        if gpu.uuid in promised and gpu.quarantine:
            problem = f"{_quarantine_topic(kernel)}{gpu.index} of {agent.id}: {gpu.quarantine}"
            return GpuFinding(problem, problem)
    return None


def _quarantine_topic(kernel: Kernel) -> str:
    return f"{kernel.name} has a GPU in quarantine, GPU "


def _other_gpus(kernel: Kernel, gpus: Sequence[KernelGpuReport]) -> GpuFinding | None:
    """Return a finding where the container has other GPUs than its allocation.

    A container keeps the GPUs that it was made with, whatever is recorded of it.
    """
    promised = {share.uuid for share in kernel.allocation.gpus} if kernel.allocation else set()
    held = {gpu.uuid for gpu in gpus}
    if held == promised:
        return None
    topic = f"{kernel.name} holds "
    return GpuFinding(f"{topic}{_named(held)}, but was promised {_named(promised)}", topic)


def _over_share(kernel: Kernel, gpus: Sequence[KernelGpuReport], factor: int, *, ends: bool) -> GpuFinding | None:
    """Return a finding where memory is above the share times `factor`, in thousandths.

    With a factor above 1 some of it may be managed memory, which leaves the GPU when others need room there.
    """
    for gpu in _capped(gpus):
        used, cap = gpu.used_bytes, (gpu.mem_bytes or 0) * factor // WHOLE_MILLI
        if used is not None and used > cap + max(1, gpu.processes or 0) * TOLERANCE_BYTES:
            topic = f"{kernel.name} uses "
            problem = f"{topic}{spell_bytes(used)} of GPU memory, its share is {spell_bytes(cap)}"
            return GpuFinding(problem, topic, ends)
    return None


def _uncapped(kernel: Kernel, pids: Sequence[int], *, ends: bool) -> GpuFinding | None:
    if not pids:
        return None
    topic = f"{kernel.name} has programs on a GPU without the libraries that cap its share: "
    return GpuFinding(f"{topic}process {' and '.join(map(str, pids[:_MOST_NAMED]))} in its container", topic, ends)


def _capped(gpus: Sequence[KernelGpuReport]) -> list[KernelGpuReport]:
    return [gpu for gpu in gpus if gpu.mem_bytes is not None]


def _named(uuids: set[str]) -> str:
    return " and ".join(sorted(uuids)) or "no GPU"
