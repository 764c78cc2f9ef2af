"""`logs`, `ssh`, `exec`, `run`."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NoReturn

import click

from muster.cli.audit import note_no_change, note_session_ids, note_sessions
from muster.cli.context import (
    asks_server,
    complete_session,
    opened_backend,
    opened_service,
    server_options,
    split_kernel,
    unwarned_backend,
)
from muster.cli.sessions.server_ssh import lacks_key, written_config
from muster.core.model.session import Kernel, Session, kernel_named
from muster.core.spec.session_spec import MAX_TASKS
from muster.core.values.errors import BadInputError, MusterError, NotFoundError
from muster.service.reach.logs import LogRequest, agent_of
from muster.service.reach.ssh_access import plain_ssh_command, ssh_config
from muster.service.service import Service

if TYPE_CHECKING:
    from muster.service.reach.programs import KernelPrograms


@click.command()
@click.argument("reference", metavar="SESSION[:KERNEL]", shell_complete=complete_session)
@click.option("--follow", "-f", is_flag=True, help="Go on until the kernel ends.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("-t", "--timestamps", is_flag=True, help="Before each line, when it was written; while the session runs.")
@click.option("--app", metavar="NAME", help="What this app has written instead; while the session runs.")
def logs(reference: str, follow: bool, tail: int | None, timestamps: bool, app: str | None) -> None:
    """Print what a kernel has written: main1, or SESSION:sub1."""
    request = LogRequest(follow, tail, timestamps, app)
    session, kernel = split_kernel(reference)
    with opened_backend() as backend, backend.reach.log(session, kernel, request) as pieces:
        for piece in pieces:
            _write(piece)


@click.command()
@click.argument("reference", metavar="SESSION[:KERNEL]", shell_complete=complete_session)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--print", "print_only", is_flag=True, help="Print the plain ssh command for another machine instead.")
def ssh(reference: str, command: tuple[str, ...], print_only: bool) -> NoReturn:
    """Log in to a kernel by ssh: main1, or SESSION:sub1 through main1. With COMMAND, run that.

    Root's key is the control node's. Other users log in with their own: `muster submit` gives the session those in
    ~/.ssh. Their connection goes by the server, as that of `muster exec` does.
    """
    if asks_server():
        _ssh_by_server(reference, command, print_only=print_only)
    with opened_service() as service:
        session, kernel = _found(service, reference)
        agent = agent_of(service.agents.all(), session, session.main)
        if print_only:
            note_no_change()
            click.echo(shlex.join([*plain_ssh_command(service.settings, session, kernel, agent), *command]))
            raise click.exceptions.Exit(0)
        config = ssh_config(service.settings, session, agent)
        note_sessions([session])
    if session.notice:
        # The login's banner says the same, but ssh does not show it at our log level.
        click.echo(f"muster: {session.notice.strip()}", err=True)
    _become_ssh(["ssh", "-F", str(config), kernel.name, *command])


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("reference", metavar="SESSION[:KERNEL]", shell_complete=complete_session)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(reference: str, command: tuple[str, ...]) -> NoReturn:
    """Run a command in a kernel: `muster exec train:sub1 -- nvidia-smi`. Its exit code is ours."""
    from muster.engine.command import run_in  # noqa: PLC0415 - the Docker SDK loads slowly

    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with opened_programs(reference) as programs:
        raise click.exceptions.Exit(run_in(programs, command, terminal=terminal))


@contextmanager
def opened_programs(reference: str) -> "Iterator[KernelPrograms]":
    """Yield what starts programs in the kernel SESSION[:KERNEL], without the control node's database."""
    session, kernel = split_kernel(reference)
    with ExitStack() as stack:
        with unwarned_backend() as backend:
            programs = stack.enter_context(backend.reach.programs(session, kernel))
            note_session_ids([programs.session_id])
        yield programs


def _ssh_by_server(reference: str, command: Sequence[str], *, print_only: bool) -> NoReturn:
    """Log in by the server, with the user's own key."""
    name, kernel = split_kernel(reference)
    with unwarned_backend() as backend:
        access = backend.reach.ssh_access(name)
        found = backend.details(name)
    kernels = {one.name: one.command for one in access.kernels}
    kernel = kernel or next(iter(kernels))
    if kernel not in kernels:
        raise NotFoundError(f"session {found.name} has no container {kernel!r}; it has {', '.join([*kernels][:10])}")
    if print_only:
        click.echo(shlex.join([*kernels[kernel], *command]))
        raise click.exceptions.Exit(0)
    if found.notice:
        click.echo(f"muster: {found.notice.strip()}", err=True)
    config = written_config(access, server_options())
    if lacks_key():
        click.echo(
            "muster: ssh needs a key, and you have none: make one by `ssh-keygen`, and sessions that you submit after"
            f" that let you in. `muster exec {found.name} -- sh` needs none",
            err=True,
        )
    _become_ssh(["ssh", "-F", str(config), kernel, *command])


def _become_ssh(words: list[str]) -> NoReturn:
    try:
        os.execvp("ssh", words)  # noqa: S606 - no shell is needed
    except FileNotFoundError:
        raise MusterError("there is no ssh on this machine; install openssh-client, or use `muster exec`") from None


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("reference", metavar="SESSION", shell_complete=complete_session)
@click.option("--tasks", "-n", type=click.IntRange(1, MAX_TASKS), metavar="N", help="N processes over all kernels.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(reference: str, tasks: int | None, command: tuple[str, ...]) -> NoReturn:
    """Run a command in every kernel of a session: `muster run train -- nvidia-smi`.

    Lines of its output begin with the kernel's name. The highest of its exit codes is ours. Ctrl-C ends it everywhere.
    Within the session `muster-run` does the same.
    """
    from muster.engine.command import run_in  # noqa: PLC0415 - the Docker SDK loads slowly

    if split_kernel(reference)[1] is not None:
        raise BadInputError(f"SESSION: {reference} is one kernel; use `muster exec {reference} -- COMMAND`")
    count = () if tasks is None else ("-n", str(tasks))
    with opened_programs(reference) as programs:
        # Our end of its standard input stays open: by its end muster-run learns that we have gone.
        words = ["muster-run", "--tied", *count, "--", *command]
        raise click.exceptions.Exit(run_in(programs, words, terminal=False, reads_input=False))


def _found(service: Service, reference: str) -> tuple[Session, Kernel]:
    name, kernel_name = split_kernel(reference)
    session = service.queries.find(name)
    return session, kernel_named(session, kernel_name)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
