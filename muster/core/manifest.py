"""Everything that one agent should run: the writer's side of docs/agent-contract.md."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.core.agent import Agent
from muster.core.environment import environment
from muster.core.session import Kernel, Session, SessionState
from muster.core.spec import HOME

Render = Callable[[str, Mapping[str, Any]], str]
_DESIRED = {
    SessionState.PREPARING: "launch",
    SessionState.RUNNING: "keep",
    SessionState.TERMINATING: "stop",
}
_TEMPLATES = {
    "authorized_keys": "0644",
    "known_hosts": "0644",
    "ssh_config": "0644",
    "sshd_config": "0644",
    "hostfile": "0644",
}


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A session's Ed25519 pair in OpenSSH's formats: identity and host key of all its kernels. Never stored."""

    private: str = field(repr=False)
    public: str


@dataclass(frozen=True, slots=True)
class LaunchPolicy:
    """What the site decides about every kernel."""

    cluster: str = "muster"
    runtime_path: str = "/opt/muster/runtime"
    folders_root: str = "/srv/muster/folders"
    sshd_port: int = 2200
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
    sessions: Iterable[Session],
    keys: Mapping[str, KeyPair],
    generation: int,
    policy: LaunchPolicy,
    render: Render,
) -> dict[str, Any]:
    """`sessions` are those placed on any agent; `keys` by session id for those to be launched now.

    `render(template, variables)` gives the text of one of muster/templates.
    """
    here = [s for s in sessions if s.state in _DESIRED and agent.id in s.agents]
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
        "sessions": [_session(session, agent, keys.get(session.id), policy, render) for session in here],
    }


def _session(
    session: Session, agent: Agent, keys: KeyPair | None, policy: LaunchPolicy, render: Render
) -> dict[str, Any]:
    kernels = [k for k in session.kernels if k.allocation and k.allocation.agent_id == agent.id]
    entry = {
        "id": session.id,
        "name": session.name,
        "generation": session.generation,
        "desired": _DESIRED[session.state],
        "network": {"name": session.network, "driver": "bridge"},
    }
    if session.state is not SessionState.PREPARING:
        return {**entry, "kernels": [{"id": kernel.id, "name": kernel.name} for kernel in kernels]}
    if keys is None:
        raise ValueError(f"session {session.id} is to be launched without keys")
    return {**entry, "kernels": [_kernel(session, kernel, agent, keys, policy, render) for kernel in kernels]}


def _kernel(
    session: Session, kernel: Kernel, agent: Agent, keys: KeyPair, policy: LaunchPolicy, render: Render
) -> dict[str, Any]:
    uid = policy.uid_of(session.owner)
    shares = kernel.allocation.gpus if kernel.allocation else ()
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
            "cpuset": None,
            "gpu_uuids": [share.uuid for share in shares],
        },
        "mounts": [mount.model_dump() for mount in session.spec.mounts],
        "publish": [{"container_port": policy.sshd_port, "host_ip": host_ip, "host_port": 0}]
        if kernel.rank == 0
        else [],
        "files": _files(session, kernel, keys, policy, render),
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
