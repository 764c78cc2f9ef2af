"""`ssh-config`: sessions as hosts in a person's own ssh configuration, for VS Code, JetBrains and whatever uses ssh."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from muster.cli.audit import note_session_ids
from muster.cli.context import asks_server, complete_session, opened_backend, server_options
from muster.cli.sessions.server_ssh import proxy_command
from muster.core.model.session import SessionState
from muster.core.values.errors import MusterError
from muster.service.reach.ssh_access import editor_host
from muster.service.reach.views import SshAccessView
from muster.service.sessions.queries import SessionQuery
from muster.service.sessions.views import SessionView
from muster.whole_files import write_whole

_DIRECTORY = "muster"
_HEAD = "# Written by `muster ssh-config`, anew each time."


@click.command("ssh-config")
@click.argument("references", metavar="[SESSION]...", nargs=-1, shell_complete=complete_session)
@click.option("--print", "print_only", is_flag=True, help="Print the entries, and write nothing.")
def ssh_config(references: tuple[str, ...], *, print_only: bool) -> None:
    """Write entries for your running sessions into your ssh configuration.

    Each is then a host for ssh, VS Code and JetBrains Gateway: NAME.muster is main1, sub1.NAME.muster another kernel.
    The entries are in ~/.ssh/muster/config, which ~/.ssh/config includes. Those of sessions that no longer run go away.
    Run it again when a session was restarted. You log in with your own key, which the session must know.
    """
    with opened_backend() as backend:
        found: Sequence[SessionView] = (
            [backend.details(reference) for reference in references]
            if references
            else backend.search(SessionQuery(states=(SessionState.RUNNING,), mine=True))
        )
        accesses = [(session, backend.reach.ssh_access(session.id)) for session in found]
        note_session_ids([session.id for session in found])
        identity = None if asks_server() else _control_key()
    home = Path.home() / ".ssh"
    options = server_options() if asks_server() else []
    known_hosts = home / _DIRECTORY / "known_hosts"
    entries = [line for session, access in accesses for line in _entry(session, access, options, identity, known_hosts)]
    if print_only:
        click.echo("\n".join(entries))
        return
    write_whole(known_hosts, "".join(f"{a.host_key_alias} {a.host_key}\n" for _, a in accesses).encode())
    write_whole(home / _DIRECTORY / "config", ("\n".join([_HEAD, *entries]) + "\n").encode())
    _include(home)
    for session, _ in accesses:
        click.echo(f"{editor_host(session.name)} is {session.name}")
    if not accesses:
        click.echo("No session of yours runs")


def _control_key() -> Path:
    """Return the key with which the control node itself logs in."""
    from muster.settings import load_settings  # noqa: PLC0415 - a server's clients have no settings

    return load_settings().state_dir / "id_ed25519"


def _entry(
    session: SessionView, access: SshAccessView, options: Sequence[str], identity: Path | None, known_hosts: Path
) -> Iterator[str]:
    for kernel in access.kernels:
        yield f"Host {editor_host(session.name, kernel.name)}"
        yield f"  HostName {kernel.name}"
        yield f"  ProxyCommand {proxy_command(access, kernel.name, options)}"
        yield f"  User {access.user}"
        if identity is not None:
            yield f"  IdentityFile {_quoted(identity)}"
        yield f"  HostKeyAlias {access.host_key_alias}"
        yield f"  UserKnownHostsFile {_quoted(known_hosts)}"
        yield "  StrictHostKeyChecking yes"


def _include(home: Path) -> None:
    """Let ~/.ssh/config include ours, before its first Host. Raises MusterError."""
    line = f"Include {_quoted(home / _DIRECTORY / 'config')}"
    path = (home / "config").resolve()
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise MusterError(f"{path} cannot be read: {error}; add the line to it: {line}") from None
    if not re.search(rf"^\s*{re.escape(line)}\s*$", text, re.MULTILINE):
        write_whole(path, f"{line}\n{text}".encode())


def _quoted(path: Path) -> str:
    return f'"{str(path).replace("%", "%%")}"'
