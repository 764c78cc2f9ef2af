"""What an agent says of itself and of the kernels on it (docs/agent-contract.md, "Report").

Fields with defaults came with later versions, or are unknown of agents that are only imagined. An agent that reports
names all of them.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from muster.contract.values import (
    Amount,
    ContainerId,
    ContractError,
    ContractModel,
    DatabaseId,
    ExitCode,
    Few,
    GpuUuid,
    Id,
    Line,
    Many,
    Milli,
    Moment,
    Port,
    PublicKey,
    Real,
    Text,
    check_complete,
    checked,
)

# Numbers of at most five digits, since a list is expanded to count its CPUs.
CpuList = Annotated[str, Field(max_length=4_096, pattern=r"^(\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*)?$")]
Address = Annotated[str, Field(pattern=r"^[0-9A-Fa-f:.]{2,45}$")]
# The engine's own states: a newer engine may have more of them, as long as the database takes.
ContainerState = Annotated[str, Field(pattern=r"^[a-z]{1,16}$")]
PciAddress = Annotated[str, Field(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$")]


class NumaReport(ContractModel):
    """A NUMA node with its online CPUs."""

    node: Annotated[int, Field(ge=0, le=65_535)]
    cpus: CpuList
    mem_bytes: Amount


class DiskReport(ContractModel):
    """The disk that the engine's data lie on."""

    path: Line = ""
    total_bytes: Amount = 0
    free_bytes: Amount = 0


class RemappedIdsReport(ContractModel):
    """The number of ids in an engine's containers under `userns-remap`; `mounts` says whether mounts can show them."""

    uids: Amount = 0
    gids: Amount = 0
    mounts: bool = False


class EngineReport(ContractModel):
    """The Docker engine; `remapped_ids` is None where its containers' ids are the host's."""

    version: Line = ""
    api_version: Line = ""
    storage_driver: Line = ""
    cgroup_version: Line = ""
    remapped_ids: RemappedIdsReport | None = None


class SwarmReport(ContractModel):
    """The engine's place in its swarm; `state` is the engine's word. `encrypts`: it can encrypt overlays."""

    state: Line = "inactive"
    node_id: Line | None = None
    manager: bool = False
    encrypts: bool = False


class GpuReport(ContractModel):
    """A GPU, or a MIG instance of one, which names its parent; `fraction` is in thousandths of that.

    `address` is the physical GPU's place on the PCI bus. `context_bytes` is what a context costs on it, as
    measured when the host was set up; None where that could not be.
    """

    index: Annotated[int, Field(ge=0, le=65_535)]
    uuid: GpuUuid
    model: Line
    mem_bytes: Amount
    mem_used_bytes: Amount | None = None
    numa_node: Annotated[int, Field(ge=0, le=65_535)] | None = None
    parent_uuid: GpuUuid | None = None
    mig_profile: Line | None = None
    fraction: Milli | None = None
    address: PciAddress | None = None
    context_bytes: Amount | None = None

    @property
    def is_instance(self) -> bool:
        return bool(self.parent_uuid)

    @property
    def physical_uuid(self) -> str:
        """Return the UUID of the physical GPU that it is, or is a part of."""
        return self.parent_uuid or self.uuid


class XidReport(ContractModel):
    """A driver's error of one number in the Linux kernel's log; `sequence` is the log's number of the newest one."""

    number: Annotated[int, Field(ge=0, le=65_535)]
    sequence: Amount


class GpuHealthReport(ContractModel):
    """The health of a physical GPU as its driver tells it; None where the driver cannot.

    A GPU that does not answer has a `problem`, and perhaps no UUID. `ecc_errors` are memory errors that could not be
    corrected since the driver was loaded. `throttled` has the reasons why the hardware slows its clocks now.
    `recovery` is what the driver asks for to have the GPU work again, in its words. `strangers` are the
    process ids of those that belong to no session.
    """

    index: Annotated[int, Field(ge=0, le=65_535)] | None
    uuid: GpuUuid | None
    address: PciAddress | None
    problem: Line = ""
    xids: Few[XidReport] = ()
    ecc_errors: Amount | None = None
    remap_failed: bool | None = None
    remap_pending: bool | None = None
    throttled: Few[Line] = ()
    recovery: Line | None = None
    strangers: Few[Amount] = ()


class ImageReport(ContractModel):
    """An image that the engine holds."""

    id: Line
    tags: Many[Line]
    size_bytes: Amount = 0


class KernelGpuReport(ContractModel):
    """A GPU that a container was made with; `used_bytes` is what its `processes` use there, null where nobody knows.

    `enforced_bytes` is the driver's own limit for the container; null: it has none. `amount` is the share in
    thousandths of a unit; null: the session requested a whole GPU. `capacity` is how many the GPU was cut into then;
    null: a whole GPU, or an earlier version made it.
    """

    uuid: GpuUuid
    amount: Amount | None = None
    capacity: Amount | None = None
    mem_bytes: Amount | None
    compute: Milli | None
    used_bytes: Amount | None = None
    processes: Amount | None = None
    enforced_bytes: Amount | None = None


class AppReport(ContractModel):
    """The status of a kernel's app; `problem` is empty if all is well."""

    healthy: bool
    exit_code: ExitCode | None = None
    problem: Text = ""


class UseSample(ContractModel):
    """A kernel's counters since its launch, each None where nothing tells; `at` is by the agent's clock."""

    at: Real
    cpu_seconds: Real | None = None
    mem_bytes: Amount | None = None
    mem_peak_bytes: Amount | None = None
    net_rx_bytes: Amount | None = None
    net_tx_bytes: Amount | None = None
    gpu_percent: Real | None = None


class KernelReport(ContractModel):
    """A container that carries the cluster's label, whether or not the control node knows it.

    `uncapped` are processes, by their numbers in it, that use a GPU of which it has a share without the libraries that
    cap them. `signals` is the count of the last signal to its command, `signal_receivers` how many programs got that.
    `public_key` is its session's in this launch; null where an earlier version made the container.
    """

    kernel_id: Line
    session_id: Line
    name: Line
    generation: Amount
    container_id: ContainerId
    state: ContainerState
    released: bool
    public_key: PublicKey | None = None
    exit_code: ExitCode | None
    oom_killed: bool
    started_at: Moment | None
    finished_at: Moment | None
    address: Address | None
    ssh_port: Port | None
    gpus: Few[KernelGpuReport] = ()
    uncapped: Few[Amount] = ()
    apps: Annotated[dict[Line, AppReport], Field(max_length=1_024)] = Field(default_factory=dict)
    use: UseSample | None = None
    disk_bytes: Amount | None = None
    notice: Text | None = None
    signals: Amount = 0
    signal_receivers: Amount = 0


class VanishedReport(ContractModel):
    """A kernel whose command was let begin on this host, in the launch of that generation, and has no container now."""

    session_id: Line
    name: Line
    generation: Amount


class NetworkReport(ContractModel):
    """A network of the cluster that this host could remove."""

    name: Line
    session_id: Line
    driver: Line
    generation: Amount


class LeftoverReport(ContractModel):
    """A thing that the agent was to remove and could not."""

    name: Line
    error: Text


class Report(ContractModel):
    """The report of a host and the cluster's things on it. `spools` are ids of sessions whose last words it keeps.

    `files` are ids of sessions that have keys there, and perhaps other files, whether or not they have containers.
    `gpu_cdi` are the GPUs that the engine can give by CDI; None where it has none.
    `leftovers` are those of the last run with a manifest; None in a report that no such run was before.
    `generation_before` is the newest that the host had accepted before such a run, 0 where it had none; None likewise.
    `database` is the id of the one whose manifest the host has accepted last.
    """

    version: Literal[1] = 1
    hostname: Line = ""
    boot_id: Line | None = None
    uptime_s: Real | None = None
    os: Line = ""
    kernel: Line = ""
    architecture: Line = ""
    cpu_count: Annotated[int, Field(ge=0, le=65_536)] = 0
    numa: Few[NumaReport] = ()
    mem_bytes: Amount = 0
    mem_available_bytes: Amount | None = None
    disk: DiskReport = DiskReport()
    docker: EngineReport = EngineReport()
    swarm: SwarmReport = SwarmReport()
    gpus: Few[GpuReport] = ()
    gpu_health: Few[GpuHealthReport] = ()
    runtime: Line | None = None
    fgpu: Line | None = None
    gpu_toolkit: Line | None = None
    gpu_cdi: Annotated[tuple[GpuUuid, ...] | None, Field(strict=False, max_length=1_024)] = None
    gpu_unlinked: Few[Line] = ()
    images: Many[ImageReport] = ()
    generation: Amount | None = None
    generation_before: Amount | None = None
    database: DatabaseId | None = None
    kernels: Many[KernelReport] = ()
    networks: Many[NetworkReport] = ()
    spools: Many[Line] = ()
    files: Many[Id] = ()
    vanished: Many[VanishedReport] = ()
    leftovers: Annotated[tuple[LeftoverReport, ...] | None, Field(strict=False, max_length=1_024)] = None
    directories: Annotated[tuple[Line, ...] | None, Field(strict=False, max_length=1_024)] = None

    @model_validator(mode="after")
    def _names_nothing_twice(self) -> Self:
        for what, names in (
            ("GPU", [gpu.uuid for gpu in self.gpus]),
            ("NUMA node", [node.node for node in self.numa]),
        ):
            if len(names) != len(set(names)):
                raise ValueError(f"it names a {what} twice")
        return self


def report_from_agent(data: object) -> Report:
    """Return the report that an agent gave. Raises ContractError."""
    report = checked(Report, data, "report")
    check_complete(report, "report")
    return report


def stored_report(data: object) -> Report | None:
    """Return the report as a store kept it, perhaps an older version's; None where it is none that can be read."""
    try:
        return checked(Report, data, "the stored report")
    except ContractError:
        return None
