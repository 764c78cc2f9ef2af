"""Everything that one agent should run for one cluster (docs/agent-contract.md, "Manifest").

What a tenant wrote has no bounds here: a spec has them, and one spec must not cost an agent its manifest.
"""

from typing import Annotated, Literal

from pydantic import Field

from muster.contract.values import ContractModel, DatabaseId, GpuUuid, Id, Item, Milli, Port, PublicKey

# These become parts of paths and of names in the engine.
Cluster = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]
KernelName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
AppName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$")]
KeyFileName = Annotated[str, Field(pattern=r"^(secrets/)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$")]
Leased = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,95}$")]
Device = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./=-]{0,159}$")]
UrlPath = Annotated[str, Field(pattern=r"^/[!-~]*$")]
HostPath = Annotated[str, Field(pattern=r"^/[^\x00]+$")]
CpuSet = Annotated[str, Field(pattern=r"^\d+(-\d+)?(,\d+(-\d+)?)*$")]
Mode = Annotated[str, Field(pattern=r"^0[0-7]{3}$")]
PortRange = Annotated[str, Field(pattern=r"^\d{1,5}(-\d{1,5})?$")]
Number = Annotated[int, Field(ge=0)]
Uid = Annotated[int, Field(ge=0, lt=(1 << 32) - 1)]
# A pass makes tuples and lists of them.
All = Annotated[tuple[Item, ...], Field(strict=False)]


class UserEntry(ContractModel):
    """The user whose processes a kernel runs."""

    name: FileName
    uid: Uid
    gid: Uid
    home: HostPath


class ResourcesEntry(ContractModel):
    """The limits of one container. `disk_bytes` None: no limit; `cpuset` None: any CPU."""

    cpu_milli: Number
    mem_bytes: Number
    shm_bytes: Number
    disk_bytes: Number | None
    pids: Number
    cpuset: CpuSet | None


class AppEntry(ContractModel):
    """An app that main1 serves; without `health`, only its port is probed."""

    name: AppName
    port: Port
    health: UrlPath | None
    starts: bool


class GpuEntry(ContractModel):
    """A kernel's part of one GPU: a share, or with `mem_bytes` and `compute` None the whole device.

    `amount` is the share in thousandths of a unit, of an instance too; None: the session requested a whole GPU.
    `capacity` is how many the GPU was cut into; None: a whole GPU, or a share of an earlier version. Both are only
    reported.
    """

    uuid: GpuUuid
    amount: Number | None
    capacity: Number | None
    mem_bytes: Number | None
    compute: Milli | None


class DevicesEntry(ContractModel):
    """A device request to the engine."""

    driver: Literal["nvidia", "cdi"]
    ids: All[Device]


class HostMountEntry(ContractModel):
    """A path of the host that a container is given."""

    source: HostPath
    target: HostPath
    read_only: bool


class GpuAccessEntry(ContractModel):
    """A container's access to its GPUs."""

    devices: DevicesEntry | None
    libraries: dict[FileName, HostPath]
    mounts: All[HostMountEntry]
    env: dict[str, str]
    usage: bool
    leases: All[Leased]


class MountEntry(ContractModel):
    """A folder below the folders' root."""

    folder: str
    target: str
    read_only: bool
    owned: bool


class FolderEntry(ContractModel):
    """A folder with an owner; `number` is that of its group and of its project quota."""

    path: str
    uid: Uid
    number: Uid
    quota_bytes: Number | None


class PublishEntry(ContractModel):
    """A port of a container at an address of its host, or at all where that is empty.

    `host_port` is a range of which the engine takes one, a port, or 0 for any.
    """

    container_port: Port
    host_ip: Annotated[str, Field(pattern=r"^([0-9A-Fa-f:.]{2,45})?$")]
    host_port: Annotated[int, Field(ge=0, le=65_535)] | PortRange


class FileEntry(ContractModel):
    """A file of a kernel's key directory."""

    content: Annotated[str, Field(repr=False)]
    mode: Mode


class NamedKernel(ContractModel):
    """A kernel that is only named."""

    id: Id
    name: KernelName


class LaunchedKernel(NamedKernel):
    """A kernel with all that it takes to make its container."""

    image: str
    command: All[str]
    env: dict[str, str]
    user: UserEntry
    resources: ResourcesEntry
    apps: All[AppEntry]
    gpus: All[GpuEntry]
    gpu_access: GpuAccessEntry | None
    mounts: All[MountEntry]
    groups: All[Uid]
    publish: All[PublishEntry]
    files: dict[KeyFileName, FileEntry]


class NetworkEntry(ContractModel):
    """A session's network."""

    name: FileName
    driver: Literal["bridge", "overlay"]


class LaunchedSession(ContractModel):
    """A session to be launched; with `release` its commands begin as soon as all of its kernels here answer.

    `files` are in the key directories of all kernels here, beside each one's own. `public_key` is that of all its
    kernels, and only reported.
    """

    id: Id
    name: str
    generation: Number
    desired: Literal["launch"]
    release: bool
    public_key: PublicKey
    network: NetworkEntry
    folders: All[FolderEntry]
    files: dict[KeyFileName, FileEntry]
    kernels: All[LaunchedKernel]


class SignalEntry(ContractModel):
    """The signal, by its number in Linux, that these kernels' commands shall have got `count` times in this launch."""

    signal: Annotated[int, Field(ge=1, le=64)]
    count: Annotated[int, Field(ge=1)]
    kernels: All[KernelName]


class KnownSession(ContractModel):
    """A session whose kernels are there; `notice` is what its users have to read, `signal` what its commands get."""

    id: Id
    name: str
    generation: Number
    desired: Literal["release", "keep", "stop"]
    network: NetworkEntry
    notice: str | None
    signal: SignalEntry | None
    kernels: All[NamedKernel]


class OverlayEntry(ContractModel):
    """An overlay network that shall exist; `mtu` None: the engine's own."""

    session_id: Id
    name: FileName
    generation: Number
    mtu: Annotated[int, Field(ge=68, le=65_535)] | None
    encrypted: bool


class Manifest(ContractModel):
    """A manifest: all that an agent should run. `overlays` is None for all agents but the one that keeps them.

    `databases` are the ids of the database that it comes from, and then of those that this one continues.
    Commands that have not begun by `begin_by_s` seconds after the host's boot must not begin any more; None: whenever.
    `kept_spools` are ids of sessions whose last words stay on the agent, for a later visit to fetch.
    """

    version: Literal[1]
    cluster: Cluster
    generation: Number
    databases: All[DatabaseId]
    runtime_path: HostPath
    sshd_port: Port
    folders_root: HostPath
    begin_by_s: Number | None
    start_timeout_s: Number
    stop_grace_s: Number
    log_max_bytes: Number
    overlays: All[OverlayEntry] | None
    sessions: All[Annotated[LaunchedSession | KnownSession, Field(discriminator="desired")]]
    kept_spools: All[Id]
