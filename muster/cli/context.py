"""What the commands share: the service layer, or a server's, and who calls.

Root's commands use the control node's database themselves. Those of other users go to its socket, where the server
knows who they are, and with --server to a server elsewhere.
"""

import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from muster import places
from muster.cli.audit import audited
from muster.core.model.token import Scope, Token
from muster.core.values.errors import BadInputError, MusterError

SOCKET = Path(places.SOCKET)
SETTINGS = Path(places.SETTINGS)

if TYPE_CHECKING:  # `--help`, `version` and the completion of flags do not need it
    from muster.service.backend import Backend
    from muster.service.questions.views import HeartbeatView
    from muster.service.service import Service


@contextmanager
def opened_service() -> "Iterator[Service]":
    """Open the control node's own service layer; what is changed goes into the audit log.

    Raises BadInputError with --server.
    """
    from muster.service.service import Service  # noqa: PLC0415 - the database's library loads slowly
    from muster.settings import load_settings  # noqa: PLC0415

    check_on_control_node()
    settings = load_settings()
    with audited(settings, current_user()), Service.opened(settings) as service:
        yield service


class _KnowsQueue(Protocol):
    def heartbeat(self) -> "HeartbeatView": ...


@contextmanager
def opened_backend() -> "Iterator[Backend]":
    """Open the control node's own answers, or those of the server that `server()` names. Raises BadInputError.

    At the end, the user is warned if nobody works the queue.
    """
    with unwarned_backend() as backend:
        yield backend
        warn_if_unworked(backend)


def warn_if_unworked(backend: _KnowsQueue) -> None:
    """Print a line to standard error, once a command, if nobody works the queue though something waits or runs."""
    meta = click.get_current_context().meta
    if "muster.warned" in meta:
        return
    try:
        unworked = backend.heartbeat().unworked
    except MusterError:
        # The command itself has succeeded, and an older server does not know.
        return
    if unworked is not None:
        meta["muster.warned"] = True
        click.echo(f"muster: warning: {unworked}; see also `muster doctor` on the control node", err=True)


@contextmanager
def unwarned_backend() -> "Iterator[Backend]":
    """Open the same for commands whose output is a program's: they warn of nothing. Raises BadInputError."""
    url = server()
    if url is None:
        with opened_service() as service:
            yield service.backend(Token("command line", current_user(), Scope.ADMIN, created_at=0.0))
        return
    from muster.remote.backend import RemoteBackend  # noqa: PLC0415 - needed for a server only
    from muster.remote.client import Client, socket_of  # noqa: PLC0415

    file = click.get_current_context().find_root().params["token_file"]
    client = Client(url, None if socket_of(url) is not None else _token(file))
    try:
        yield RemoteBackend(client)
    finally:
        client.close()


def server() -> str | None:
    """Return the URL of the server that answers: --server, MUSTER_SERVER, or the control node's own socket.

    None where the command uses the control node's database itself.
    """
    context = click.get_current_context(silent=True)
    given: str | None = None if context is None else context.find_root().params.get("server")
    return given if given is not None else _own_socket()


def _own_socket() -> str | None:
    """Return the URL of this machine's socket for a user who may not read the control node's settings."""
    if "MUSTER_CONFIG" in os.environ or os.geteuid() == 0 or os.access(SETTINGS, os.R_OK):
        return None
    return f"unix:{SOCKET}" if SOCKET.is_socket() else None


def server_options() -> list[str]:
    """Return the options by which another `muster` asks the same server, with the same token."""
    url = server()
    file = click.get_current_context().find_root().params["token_file"]
    return [*(("--server", url) if url else ()), *(("--token-file", str(file.absolute())) if file else ())]


def asks_server() -> bool:
    """Return whether a server answers, rather than this process."""
    return server() is not None


def check_on_control_node() -> None:
    """Raises BadInputError where a server would have to answer what none does."""
    url = server()
    if url is not None:
        _, _, command = click.get_current_context().command_path.partition(" ")
        raise BadInputError(needs_control_node(command, url))


def needs_control_node(command: str, url: str) -> str:
    """Return what to say of a command that no server answers."""
    if url == f"unix:{SOCKET}":
        return f"muster {command} needs the control node's settings; ask an administrator, such as root, to run it"
    return f"--server: muster {command} needs the control node; run it there, without --server"


def _token(file: Path | None) -> str:
    if file is None:
        if token := os.environ.get("MUSTER_TOKEN", "").strip():
            return token
        raise BadInputError("--token-file: there is no token; name a file that holds one, or set MUSTER_TOKEN")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or error
        raise BadInputError(f"--token-file: {file} cannot be read: {cause}") from None


def current_user() -> str:
    """Return the user; behind sudo, the one who called it."""
    return os.environ.get("SUDO_USER") or getpass.getuser()


def split_kernel(reference: str) -> tuple[str, str | None]:
    """Return `train:sub1` as session and kernel name."""
    session, _, kernel = reference.partition(":")
    return session, kernel or None


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def complete_session(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from muster.service.sessions.queries import SessionQuery  # noqa: PLC0415 - needed here only

    try:
        with unwarned_backend() as backend:
            return [session.name for session in backend.search(SessionQuery()) if session.name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a shell's completion has nowhere to show an error
        return []
