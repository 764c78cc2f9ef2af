"""Everything that one agent should run: the writer's side of docs/agent-contract.md."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from muster.core.gpus.access import gpu_access
from muster.core.launch.app_files import app_files, manifest_apps
from muster.core.launch.environment import environment
from muster.core.launch.folders import folders_to_make, groups, mounts
from muster.core.launch.startup_files import startup_files
from muster.core.model.agent import Agent
from muster.core.model.numa import cpuset, promised_by_node
from muster.core.model.session import Kernel, LaunchStep, Session, SessionState
from muster.core.spec.session_spec import HOME

Render = Callable[[str, Mapping[str, Any]], str]
_TEMPLATES = {
    "authorized_keys": "0644",
    "known_hosts": "0644",
    "ssh_config": "0644",
    "sshd_config": "0644",
    "hostfile": "0644",
}


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
    """What the site decides about every kernel."""

    cluster: str = "muster"
    runtime_path: str = "/opt/muster/runtime"
    folders_root: str = "/srv/muster/folders"
    sshd_port: int = 2200
    ssh_port_range: str = "30000-32767"
    master_port: int = 12345
    start_timeout_s: int = 60
    stop_grace_s: int = 10
    log_max_bytes: int = 1 << 20
    pids: int = 4096
    work_uid: int = 1000
    owner_uids: Mapping[str, int] = field(default_factory=dict)

    def uid_of(self, owner: str) -> int:
        return self.owner_uids.get(owner, self.work_uid)


def manifest(
    agent: Agent,
    sessions: Sequence[Session],
    keys: Mapping[str, KeyPair],
    generation: int,
    policy: LaunchPolicy,
    render: Render,
    *,
    keeps_overlays: bool = False,
) -> dict[str, Any]:
    """`sessions` are those placed on any agent; `keys` by session id for those to be launched now.

    `render(template, variables)` gives the text of one of muster/templates. With `keeps_overlays` the agent makes and
    removes the overlay networks of all sessions.
    """
    present = [session for session in sessions if _desired(session, keys)]
    here = [session for session in present if agent.id in session.agents]
    cpusets = _cpusets(agent, here)
    return {
        "version": 1,
        "cluster": policy.cluster,
        "generation": generation,
        "runtime_path": policy.runtime_path,
        "sshd_port": policy.sshd_port,
        "folders_root": policy.folders_root,
        "start_timeout_s": policy.start_timeout_s,
        "stop_grace_s": policy.stop_grace_s,
        "log_max_bytes": policy.log_max_bytes,
        "overlays": [_overlay(s, agent) for s in present if s.spans_agents and s.generation]
        if keeps_overlays
        else None,
        "sessions": [_session(s, agent, keys, policy, render, cpusets) for s in here],
    }


def _cpusets(agent: Agent, sessions: Sequence[Session]) -> dict[str, str | None]:
    """By kernel id, the CPUs that it may run on; None: any.

    No memory nodes: what cores write lies on their own node as long as it has room, and where it has none, a kernel
    bound to that node would be killed within its promised memory.
    """
    kernels = {kernel.id: kernel for session in sessions for kernel in _kernels_on(agent, session)}
    nodes = {id_: kernel.allocation.numa_nodes for id_, kernel in kernels.items() if kernel.allocation}
    promised = promised_by_node((nodes[id_], kernel.slots.cpu) for id_, kernel in kernels.items())
    return {id_: cpuset(agent.numa, chosen, promised, agent.most_cpu_of_a_kernel) for id_, chosen in nodes.items()}


def _kernels_on(agent: Agent, session: Session) -> list[Kernel]:
    return [kernel for kernel in session.kernels if kernel.allocation and kernel.allocation.agent_id == agent.id]


def _desired(session: Session, keys: Mapping[str, KeyPair]) -> str:
    """Empty for a session that has nothing on any agent yet."""
    if session.step is LaunchStep.STARTING:
        return "launch" if session.id in keys else "keep"
    if session.step is LaunchStep.RELEASING:
        return "release"
    return {SessionState.RUNNING: "keep", SessionState.TERMINATING: "stop"}.get(session.state, "")


def _overlay(session: Session, keeper: Agent) -> dict[str, Any]:
    attributes = keeper.report.get("attributes", {})
    return {
        "session_id": session.id,
        "name": session.network,
        "generation": session.generation,
        "mtu": int(attributes["overlay_mtu"]) if attributes.get("overlay_mtu") else None,
        "encrypted": bool(attributes.get("overlay_encrypted")),
    }


def _session(
    session: Session,
    agent: Agent,
    keys: Mapping[str, KeyPair],
    policy: LaunchPolicy,
    render: Render,
    cpusets: Mapping[str, str | None],
) -> dict[str, Any]:
    kernels = _kernels_on(agent, session)
    desired = _desired(session, keys)
    entry = {
        "id": session.id,
        "name": session.name,
        "generation": session.generation,
        "desired": desired,
        "network": {"name": session.network, "driver": "overlay" if session.spans_agents else "bridge"},
    }
    if desired != "launch":
        named = [{"id": kernel.id, "name": kernel.name} for kernel in kernels]
        return {**entry, "notice": session.notice, "kernels": named}
    pair = keys[session.id]
    launched = [_kernel(session, kernel, agent, pair, policy, render, cpusets[kernel.id]) for kernel in kernels]
    made = folders_to_make(session, policy.uid_of)
    return {**entry, "release": not session.spans_agents, "folders": made, "kernels": launched}


def _kernel(
    session: Session,
    kernel: Kernel,
    agent: Agent,
    keys: KeyPair,
    policy: LaunchPolicy,
    render: Render,
    cpus: str | None,
) -> dict[str, Any]:
    uid = policy.uid_of(session.owner)
    gpus = gpu_access(agent, kernel)
    host_ip = str(agent.report.get("attributes", {}).get("publish_address", "127.0.0.1"))
    return {
        "id": kernel.id,
        "name": kernel.name,
        "image": kernel.image,
        "command": ["sh", "-c", kernel.command] if kernel.command else [],
        "env": environment(session, kernel, policy.master_port),
        "user": {"name": "work", "uid": uid, "gid": uid, "home": HOME},
        "resources": {
            "cpu_milli": kernel.slots.cpu,
            "mem_bytes": kernel.slots.mem,
            "shm_bytes": kernel.shm,
            "pids": policy.pids,
            "cpuset": cpus,
        },
        "apps": manifest_apps(session, kernel),
        "gpus": [asdict(gpu) for gpu in gpus.gpus],
        "gpu_access": gpus.access,
        "mounts": mounts(session),
        "groups": groups(session, policy.uid_of),
        "publish": [{"container_port": policy.sshd_port, "host_ip": host_ip, "host_port": policy.ssh_port_range}]
        if kernel.rank == 0
        else [],
        "files": {
            **_files(session, kernel, keys, policy, render),
            **app_files(session, kernel, keys.private, policy.runtime_path, render),
            **startup_files(session, kernel, keys.secrets),
            **{name: {"content": content, "mode": "0444"} for name, content in gpus.files.items()},
        },
    }


def _files(session: Session, kernel: Kernel, keys: KeyPair, policy: LaunchPolicy, render: Render) -> dict[str, Any]:
    variables = {
        "session": session,
        "kernel": kernel,
        "hosts": [k.name for k in session.kernels],
        "public_key": keys.public,
        "ssh_keys": session.spec.ssh_keys,
        "sshd_port": policy.sshd_port,
    }
    files = {name: {"content": render(name, variables), "mode": mode} for name, mode in _TEMPLATES.items()}
    files["id_ed25519"] = {"content": keys.private, "mode": "0600"}
    files["id_ed25519.pub"] = {"content": keys.public + "\n", "mode": "0644"}
    if session.spec.script is not None and kernel.command == "/run/muster/job":
        files["job"] = {"content": session.spec.script, "mode": "0755"}
    return files
