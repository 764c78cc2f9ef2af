"""How a person gets into main1 from outside: the control node's own key, and an ssh configuration for one session."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from muster.core.agents.agent import Agent
from muster.core.model.session import Kernel, Session, SessionState
from muster.core.values.errors import NotPossibleInStateError
from muster.engine.agent_ssh import is_local, ssh_address, ssh_command, ssh_port, ssh_user
from muster.settings import Settings
from muster.store.database.lock import exclusive
from muster.whole_files import write_whole, writing_to


def control_public_key(settings: Settings) -> str:
    """Return the public half of the control node's key; the first call makes the pair."""
    path = _key_path(settings)
    if not path.exists():
        _make_key(path)
    return path.with_suffix(".pub").read_text(encoding="utf-8").strip()


def ssh_config(settings: Settings, session: Session, agent: Agent) -> Path:
    """Write a configuration file in which each kernel is a host, as `sub1` and as `ssh_host_alias()` names it.

    `agent` is main1's; the other kernels are reached through main1. Raises NotPossibleInStateError when main1 does
    not run.
    """
    directory = settings.state_dir / "ssh" / session.id
    config, known_hosts = directory / "config", directory / "known_hosts"
    main, *others = session.kernels
    way = _way_to_main(settings, session, agent)
    lines = [
        f"Host {main.name} {ssh_host_alias(session, main)}",
        f"  HostName {way.host}",
        f"  Port {way.port}",
    ]
    if way.through_agent:
        lines.append(f"  ProxyCommand {_proxy_command(agent)}")
    for kernel in others:
        lines += [
            f"Host {kernel.name} {ssh_host_alias(session, kernel)}",
            f"  HostName {kernel.name}",
            f"  Port {settings.launch_policy().sshd_port}",
            f"  ProxyCommand {_through_main(config, main)}",
        ]
    lines += [
        "Host *",
        "  User work",
        f"  HostKeyAlias {session.network}",
        f"  IdentityFile {_quoted(_key_path(settings))}",
        "  IdentitiesOnly yes",
        f"  UserKnownHostsFile {_quoted(known_hosts)}",
        "  StrictHostKeyChecking yes",
        "  LogLevel ERROR",
    ]
    write_whole(known_hosts, f"{session.network} {session.public_key}\n".encode())
    write_whole(config, ("\n".join(lines) + "\n").encode())
    return config


def has_way_in(session: Session) -> bool:
    """Return whether ssh reaches main1: where it is published, or on its session's bridge."""
    on_bridge = session.main.address is not None and not session.spans_agents
    return session.state is SessionState.RUNNING and (session.main.ssh_port is not None or on_bridge)


def ssh_host_alias(session: Session, kernel: Kernel) -> str:
    """Return a kernel's name in the session's configuration file, which no kernel of another session has.

    Ansible shares a connection between hosts of one name, whatever their configuration files say.
    """
    return f"{kernel.name}.{session.network}"


def editor_host(session_name: str, kernel_name: str | None = None) -> str:
    """Return the name by which `muster ssh-config` lets ssh and editors know a kernel, main1 by default."""
    before = "" if kernel_name in {None, "main1"} else f"{kernel_name}."
    return f"{before}{session_name}.muster"


def ssh_access(settings: Settings, session: Session, agent: Agent) -> "SshAccess":
    """Return how somebody logs in who has a key that the session knows. Raises NotPossibleInStateError."""
    commands = {one.name: plain_ssh_command(settings, session, one, agent) for one in session.kernels}
    alias = f"{session.network}-{session.generation}"
    return SshAccess(session.id, alias, session.public_key or "", settings.launch_policy().sshd_port, commands)


def plain_ssh_command(settings: Settings, session: Session, kernel: Kernel, agent: Agent) -> list[str]:
    """Return what users type on a machine without Muster and our configuration, but with their own key.

    Raises NotPossibleInStateError when main1 does not run.
    """
    way = _way_to_main(settings, session, agent)
    # Ports and addresses are used again, so a host key that is remembered for one would later be another session's.
    alias = ("-o", f"HostKeyAlias={session.network}-{session.generation}")
    jump = ("-J", _jump(agent)) if way.through_agent else ()
    main = [*jump, "-p", str(way.port), *alias, f"work@{way.host}"]
    if kernel.rank == 0:
        return ["ssh", *main]
    # Not -J for main1 too: that takes no host key alias.
    inner = shlex.join(["ssh", "-W", f"{kernel.name}:{settings.launch_policy().sshd_port}", *main])
    return ["ssh", "-o", f"ProxyCommand={inner}", *alias, f"work@{kernel.name}"]


@dataclass(frozen=True, slots=True)
class SshAccess:
    """The sshd of a session's kernels: its port in each kernel and its key, and by kernel what a user types."""

    session_id: str
    host_key_alias: str
    host_key: str
    port: int
    commands: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class _Way:
    """The address of main1's sshd, and whether only the agent itself reaches it."""

    host: str
    port: int
    through_agent: bool


def _way_to_main(settings: Settings, session: Session, agent: Agent) -> _Way:
    """Return main1's published sshd; where it is not published, its own on its session's bridge.

    Raises NotPossibleInStateError.
    """
    if not has_way_in(session):
        raise NotPossibleInStateError(
            f"{session.main.name} of session {session.name} is on no network at present; try again"
            if session.state is SessionState.RUNNING
            else f"session {session.name} is {session.state}; ssh reaches sessions that are RUNNING"
        )
    if session.main.ssh_port is None:
        port = settings.launch_policy().sshd_port
        return _Way(session.main.address or "", port, through_agent=not is_local(agent))
    host = agent.connection.publish_address
    if ip_address(host).is_unspecified:
        host = "127.0.0.1" if is_local(agent) else ssh_address(agent)
    through_agent = not (agent.connection.publishes_to_others or is_local(agent))
    return _Way(host, session.main.ssh_port, through_agent)


def _proxy_command(agent: Agent) -> str:
    program, *rest = ssh_command(agent)
    # A percent sign belongs to the inventory's options; ssh would take it for one of this line.
    return f"{program} -W '[%h]:%p' {shlex.join(rest).replace('%', '%%')}"


def _through_main(config: Path, main: Kernel) -> str:
    """Return what ProxyJump would run, but that ssh gives a shell the path of the configuration without quotes."""
    return f"ssh -F {shlex.quote(str(config)).replace('%', '%%')} -W %h:%p {main.name}"


def _jump(agent: Agent) -> str:
    user, port, address = ssh_user(agent), ssh_port(agent), ssh_address(agent)
    host = f"[{address}]" if ":" in address else address
    return f"{user}@{host}".removeprefix("@") + (f":{port}" if port else "")


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("%", "%%") + '"'


def _key_path(settings: Settings) -> Path:
    return settings.state_dir / "id_ed25519"


def _make_key(path: Path) -> None:
    from muster.keys import make_key_pair  # noqa: PLC0415 - needed once in the life of a control node

    with writing_to(path), exclusive(path.with_suffix(".lock"), wait=True):
        if path.exists():
            return
        pair = make_key_pair("muster-control")
        # The private half comes last: the pair is there when it is.
        write_whole(path.with_suffix(".pub"), f"{pair.public}\n".encode())
        write_whole(path, pair.private.encode())
