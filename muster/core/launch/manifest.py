"""Everything that one agent should run: the writer's side of docs/agent-contract.md."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from muster.contract.manifest import (
    FileEntry,
    KnownSession,
    LaunchedKernel,
    LaunchedSession,
    Manifest,
    NamedKernel,
    NetworkEntry,
    OverlayEntry,
    PublishEntry,
    ResourcesEntry,
    SignalEntry,
    UserEntry,
)
from muster.core.agents.agent import Agent
from muster.core.agents.numa import cpuset, promised_by_node
from muster.core.gpus.access import gpu_access
from muster.core.launch.app_files import app_files, manifest_apps
from muster.core.launch.environment import environment
from muster.core.launch.folders import folders_to_make, groups, mounts
from muster.core.launch.startup_files import Files, startup_files
from muster.core.model.apps import apps_of
from muster.core.model.session import Kernel, LaunchStep, Session, SessionState
from muster.core.spec.end_signal import SIGNALS
from muster.core.spec.mounts import HOME

Render = Callable[[str, Mapping[str, Any]], str]
_TEMPLATES = {
    "authorized_keys": "0644",
    "known_hosts": "0644",
    "ssh_config": "0644",
    "sshd_config": "0644",
    "hostfile": "0644",
    "hydra_hosts": "0644",
    "hosts": "0644",
}
# What a visit may take besides: an agent waits for another run of its code, and makes networks and containers.
VISIT_SLACK_S = 120
# Where a client of ssh connects to unless it is configured otherwise.
_USUAL_SSH_PORT = 22


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A session's Ed25519 pair in OpenSSH's formats: identity and host key of all its kernels. Never stored.

    With it go the values of the secrets that the session asks for, by name.
    """

    private: str = field(repr=False)
    public: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class LaunchPolicy:
    """The site's decisions about every kernel."""

    cluster: str = "muster"
    runtime_path: str = "/opt/muster/runtime"
    folders_root: str = "/srv/muster/folders"
    sshd_port: int = 2200
    ssh_port_range: str = "30000-32767"
    master_port: int = 12345
    lost_after_s: float = 300.0
    start_timeout_s: int = 60
    stop_grace_s: int = 10
    visit_slack_s: int = VISIT_SLACK_S
    log_max_bytes: int = 1 << 20
    pids: int = 4096
    work_uid: int = 1000
    owner_uids: Mapping[str, int] = field(default_factory=dict)
    owner_uid_range: range | None = None
    owner_gids: Mapping[str, int] = field(default_factory=dict)
    unix_owners: bool = False

    def uid_of(self, owner: str) -> int:
        """Return the uid of an owner's kernels. Raises KeyError where each owner has one of their own, but not this."""
        return self.owner_uids[owner] if self.owner_uid_range else self.owner_uids.get(owner, self.work_uid)

    def gid_of(self, owner: str) -> int:
        """Return the gid of an owner's kernels: as their uid, unless they are a Unix user. Raises KeyError."""
        return self.owner_gids.get(owner, self.uid_of(owner))


def manifest(
    agent: Agent,
    sessions: Sequence[Session],
    keys: Mapping[str, KeyPair],
    generation: int,
    policy: LaunchPolicy,
    render: Render,
    *,
    keeps_overlays: bool = False,
    encrypting: Collection[str] = (),
    kept_spools: Collection[str] = (),
    begin_by_s: int | None = None,
    databases: Collection[str] = (),
) -> Manifest:
    """Return all that the agent shall run.

    `sessions` are those placed on any agent, and ended ones whose last words are to be fetched.

    `keys` are by session id, for those to be launched now. `render(template, variables)` returns the text
    of one of muster/templates. With `keeps_overlays` the agent makes and removes the overlay networks of all sessions.
    `encrypting` are the ids of agents that can encrypt theirs. `kept_spools` are the ids of ended sessions whose last
    words stay there for a later visit. `begin_by_s` is the `latest_begin` of commands; None: whenever.
    `databases` are the ids of the database that says so, and of those that it continues.
    """
    present = [session for session in sessions if _desired(session, keys)]
    here = [session for session in present if agent.id in session.agents]
    cpusets = _cpusets(agent, here)
    overlays = tuple(
        _overlay(session, agent, encrypting) for session in present if session.spans_agents and session.generation
    )
    return Manifest(
        version=1,
        cluster=policy.cluster,
        generation=generation,
        databases=tuple(databases),
        runtime_path=policy.runtime_path,
        sshd_port=policy.sshd_port,
        folders_root=policy.folders_root,
        begin_by_s=begin_by_s,
        start_timeout_s=policy.start_timeout_s,
        stop_grace_s=policy.stop_grace_s,
        log_max_bytes=policy.log_max_bytes,
        overlays=overlays if keeps_overlays else None,
        sessions=tuple(_session(session, agent, keys, policy, render, cpusets) for session in here),
        kept_spools=tuple(kept_spools),
    )


def latest_begin(agent: Agent, now: float, policy: LaunchPolicy) -> int | None:
    """Return by when commands may begin, in seconds since the host's boot; None where that cannot be told.

    Then the agent is LOST, if it gives no more answer to a manifest that is sent now: its sessions may run elsewhere.
    The host's clock had advanced at least that far as its last report tells.
    No launch is refused for whose answer the control node still waits.
    """
    uptime_s, passed_s = agent.report.uptime_s, now - agent.observed_at
    # Less than nothing: the control node's clock was set back since.
    if uptime_s is None or passed_s < 0:
        return None
    visit_s = policy.start_timeout_s + policy.stop_grace_s + policy.visit_slack_s
    return int(uptime_s + passed_s + max(policy.lost_after_s, visit_s))


def _cpusets(agent: Agent, sessions: Sequence[Session]) -> dict[str, str | None]:
    """Return by kernel id the CPUs that it may run on, or None for any.

    Memory nodes are not set. Cores write to their own node as long as it has room. Once it is full, a kernel bound to
    it would be killed although it keeps to its promised memory.
    """
    kernels = {kernel.id: kernel for session in sessions for kernel in _kernels_on(agent, session)}
    nodes = {id_: kernel.allocation.numa_nodes for id_, kernel in kernels.items() if kernel.allocation}
    promised = promised_by_node((nodes[id_], kernel.slots.cpu) for id_, kernel in kernels.items())
    return {id_: cpuset(agent.numa, chosen, promised, agent.most_cpu_of_a_kernel) for id_, chosen in nodes.items()}


def _kernels_on(agent: Agent, session: Session) -> list[Kernel]:
    return [kernel for kernel in session.kernels if kernel.allocation and kernel.allocation.agent_id == agent.id]


def _desired(session: Session, keys: Mapping[str, KeyPair]) -> Literal["launch", "release", "keep", "stop"] | None:
    """Return what agents shall do with the session; None if it has nothing on any agent yet."""
    if session.step is LaunchStep.STARTING:
        return "launch" if session.id in keys else "keep"
    if session.step is LaunchStep.RELEASING:
        return "release"
    if session.state is SessionState.RUNNING:
        return "keep"
    return "stop" if session.state in {SessionState.TERMINATING, SessionState.TERMINATED} else None


def _overlay(session: Session, keeper: Agent, encrypting: Collection[str]) -> OverlayEntry:
    wish = keeper.connection.overlay_encrypted
    return OverlayEntry(
        session_id=session.id,
        name=session.network,
        generation=session.generation,
        mtu=keeper.connection.overlay_mtu or None,
        encrypted=set(session.agents) <= set(encrypting) if wish is None else wish,
    )


def _session(
    session: Session,
    agent: Agent,
    keys: Mapping[str, KeyPair],
    policy: LaunchPolicy,
    render: Render,
    cpusets: Mapping[str, str | None],
) -> LaunchedSession | KnownSession:
    kernels = _kernels_on(agent, session)
    desired = _desired(session, keys)
    network = NetworkEntry(name=session.network, driver="overlay" if session.spans_agents else "bridge")
    if desired != "launch":
        return KnownSession(
            id=session.id,
            name=session.name,
            generation=session.generation,
            desired=desired or "keep",
            network=network,
            notice=session.notice,
            signal=_signal(session, kernels),
            kernels=tuple(NamedKernel(id=kernel.id, name=kernel.name) for kernel in kernels),
        )
    pair = keys[session.id]
    files = {k.id: _files(session, k, agent, pair, policy, render) for k in kernels}
    shared = _shared(list(files.values()))
    own = {id_: {name: file for name, file in each.items() if name not in shared} for id_, each in files.items()}
    return LaunchedSession(
        id=session.id,
        name=session.name,
        generation=session.generation,
        desired="launch",
        release=not session.spans_agents,
        public_key=pair.public,
        network=network,
        folders=folders_to_make(session, policy.uid_of),
        files=shared,
        kernels=tuple(_kernel(session, k, agent, policy, cpusets[k.id], own[k.id]) for k in kernels),
    )


def _signal(session: Session, kernels: Sequence[Kernel]) -> SignalEntry | None:
    names = tuple(kernel.name for kernel in kernels if session.gets_signal(kernel))
    if not names:
        return None
    return SignalEntry(signal=SIGNALS[session.spec.signal_name], count=session.signals, kernels=names)


def _shared(files: Sequence[Files]) -> Files:
    """Return the files that each of several kernels has alike: they are sent once."""
    first, *others = files
    return {name: file for name, file in first.items() if others and all(each.get(name) == file for each in others)}


def _kernel(
    session: Session,
    kernel: Kernel,
    agent: Agent,
    policy: LaunchPolicy,
    cpus: str | None,
    files: Files,
) -> LaunchedKernel:
    uid, gid = policy.uid_of(session.owner), policy.gid_of(session.owner)
    gpus = gpu_access(agent, kernel, session.spec)
    return LaunchedKernel(
        id=kernel.id,
        name=kernel.name,
        image=kernel.image,
        command=("sh", "-c", kernel.command) if kernel.command else (),
        env=environment(session, kernel, policy.master_port),
        user=UserEntry(name="work", uid=uid, gid=gid, home=HOME),
        resources=ResourcesEntry(
            cpu_milli=kernel.slots.cpu,
            mem_bytes=kernel.slots.mem,
            shm_bytes=kernel.shm,
            disk_bytes=session.spec.disk,
            pids=policy.pids,
            cpuset=cpus,
        ),
        apps=manifest_apps(session, kernel),
        gpus=gpus.gpus,
        gpu_access=gpus.access,
        mounts=mounts(session),
        groups=groups(session, policy.uid_of),
        publish=_published(session, kernel, agent, policy),
        files=files,
    )


def _published(session: Session, kernel: Kernel, agent: Agent, policy: LaunchPolicy) -> tuple[PublishEntry, ...]:
    """Return main1's sshd, unless only the agent shall reach it and does so by main1's own address.

    That is a bridge's: a host has no way into an overlay. A published port takes the engine 30 ms of CPU.
    """
    connection = agent.connection
    if kernel.rank or not (connection.publishes_to_others or session.spans_agents):
        return ()
    host_ip = connection.publish_address
    return (PublishEntry(container_port=policy.sshd_port, host_ip=host_ip, host_port=policy.ssh_port_range),)


def _files(
    session: Session, kernel: Kernel, agent: Agent, keys: KeyPair, policy: LaunchPolicy, render: Render
) -> Files:
    gpu_files = gpu_access(agent, kernel, session.spec).files
    return {
        **_login_files(session, kernel, keys, policy, render),
        **app_files(session, kernel, keys.private, policy.runtime_path, render),
        **startup_files(session, kernel, keys.secrets),
        **{name: FileEntry(content=text, mode="0444") for name, text in gpu_files.items()},
    }


def _mpi_slots(kernel: Kernel) -> int:
    """Return how many processes MPI starts in a kernel: one for each GPU or share of one, else for each core."""
    return kernel.slots.gpu or (1 if kernel.slots.fgpu else max(1, kernel.slots.cpu // 1000))


def _login_files(session: Session, kernel: Kernel, keys: KeyPair, policy: LaunchPolicy, render: Render) -> Files:
    variables = {
        "session": session,
        "kernel": kernel,
        "hosts": [k.name for k in session.kernels],
        "slots": {k.name: _mpi_slots(k) for k in session.kernels},
        "public_key": keys.public,
        "ssh_keys": session.spec.ssh_keys,
        "sshd_port": policy.sshd_port,
    }
    files = {name: FileEntry(content=render(name, variables), mode=mode) for name, mode in _TEMPLATES.items()}
    files["id_ed25519"] = FileEntry(content=keys.private, mode="0600")
    files["id_ed25519.pub"] = FileEntry(content=keys.public + "\n", mode="0644")
    taken = {app.port for app in apps_of(session.spec) if kernel.rank == 0}
    if _USUAL_SSH_PORT not in {policy.sshd_port, *taken}:
        files["ssh_ports"] = FileEntry(content=f"{_USUAL_SSH_PORT}\n", mode="0444")
    if session.spec.script is not None and kernel.command == "/run/muster/job":
        files["job"] = FileEntry(content=session.spec.script, mode="0755")
    return files
