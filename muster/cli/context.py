"""What the commands share: the service layer, or a server's, and who calls."""

import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from muster.cli.audit import audited
from muster.core.model.token import Scope, Token
from muster.core.values.errors import BadInputError, MusterError

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
    """Open the control node's own answers, or with --server those of another one. Raises BadInputError.

    At the end, the user is warned if nobody works the queue.
    """
    with _unwarned_backend() as backend:
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
def _unwarned_backend() -> "Iterator[Backend]":
    if not asks_server():
        with opened_service() as service:
            yield service.backend(Token("command line", current_user(), Scope.ADMIN, created_at=0.0))
        return
    from muster.remote.backend import RemoteBackend  # noqa: PLC0415 - needed with --server only
    from muster.remote.client import Client  # noqa: PLC0415

    given = click.get_current_context().find_root().params
    client = Client(given["server"], _token(given["token_file"]))
    try:
        yield RemoteBackend(client)
    finally:
        client.close()


def asks_server() -> bool:
    """Return whether --server is given, or MUSTER_SERVER."""
    context = click.get_current_context(silent=True)
    return context is not None and context.find_root().params.get("server") is not None


def check_on_control_node() -> None:
    """Raises BadInputError with --server, for what no server answers."""
    if asks_server():
        _, _, command = click.get_current_context().command_path.partition(" ")
        raise BadInputError(f"--server: muster {command} needs the control node; run it there, without --server")


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
        with _unwarned_backend() as backend:
            return [session.name for session in backend.search(SessionQuery()) if session.name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a shell's completion has nowhere to show an error
        return []
