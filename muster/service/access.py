"""How a person gets into main1 from outside: the control node's own key, and an ssh configuration for one session."""

from pathlib import Path

from muster.core.agent import Agent
from muster.core.errors import NotPossibleInStateError
from muster.core.session import Session, SessionState
from muster.settings import Settings
from muster.store.lock import exclusive


def control_public_key(settings: Settings) -> str:
    """The public half of the control node's key; the pair is made when it is first asked for."""
    path = _key_path(settings)
    if not path.exists():
        _make_key(path)
    return path.with_suffix(".pub").read_text(encoding="utf-8").strip()


def ssh_config(settings: Settings, session: Session, agent: Agent) -> Path:
    """A configuration file in which `main1` and the other kernels are hosts; the others are reached through main1.

    Raises NotPossibleInStateError when main1 does not run.
    """
    if session.state is not SessionState.RUNNING or session.main.ssh_port is None:
        raise NotPossibleInStateError(
            f"session {session.name} is {session.state}; ssh reaches sessions that are RUNNING"
        )
    directory = settings.state_dir / "ssh" / session.id
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = [kernel.name for kernel in session.kernels]
    known_hosts = directory / "known_hosts"
    known_hosts.write_text("".join(f"{name} {session.public_key}\n" for name in names), encoding="utf-8")
    host, port = main_address(session, agent)
    lines = ["Host main1", "  HostKeyAlias main1", f"  HostName {host}", f"  Port {port}"]
    for name in names[1:]:
        lines += [f"Host {name}", "  ProxyJump main1", "  Port 2200", f"  HostKeyAlias {name}"]
    lines += [
        "Host *",
        "  User work",
        f"  IdentityFile {_key_path(settings)}",
        "  IdentitiesOnly yes",
        f"  UserKnownHostsFile {known_hosts}",
        "  StrictHostKeyChecking yes",
        "  LogLevel ERROR",
    ]
    path = directory / "config"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def main_address(session: Session, agent: Agent) -> tuple[str, int]:
    """Where main1's sshd is published."""
    attributes = agent.report["attributes"]
    published = str(attributes["publish_address"])
    local = attributes["connection"] == "local"
    host = published if local or not published.startswith("0.") else str(attributes["address"])
    if session.main.ssh_port is None:
        raise NotPossibleInStateError(f"session {session.name} has no published ssh port")
    return host, session.main.ssh_port


def _key_path(settings: Settings) -> Path:
    return settings.state_dir / "id_ed25519"


def _make_key(path: Path) -> None:
    from muster.keys import make_key_pair  # noqa: PLC0415 - needed once in the life of a control node

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with exclusive(path.with_suffix(".lock"), wait=True):
        if path.exists():
            return
        pair = make_key_pair("muster-control")
        path.with_suffix(".pub").write_text(f"{pair.public}\n", encoding="utf-8")
        partial = path.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_text(pair.private, encoding="utf-8")
        partial.rename(path)
