"""`logs`, `ssh`, `exec`, `run`."""

import os
import shlex
import sys
from typing import NoReturn

import click

from muster.cli.audit import note_no_change, note_sessions
from muster.cli.context import complete_session, opened_backend, opened_service, split_kernel
from muster.core.model.session import Kernel, Session, kernel_named
from muster.core.spec.session_spec import MAX_TASKS
from muster.core.values.errors import BadInputError, MusterError
from muster.service.reach.logs import LogRequest, agent_of
from muster.service.reach.ssh_access import plain_ssh_command, ssh_config
from muster.service.service import Service


@click.command()
@click.argument("reference", metavar="SESSION[:KERNEL]", shell_complete=complete_session)
@click.option("--follow", "-f", is_flag=True, help="Go on until the kernel ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--timestamps", is_flag=True, help="Before each line, when it was written; while the session runs.")
@click.option("--app", metavar="NAME", help="What this app has written instead; while the session runs.")
def logs(reference: str, follow: bool, tail: int | None, timestamps: bool, app: str | None) -> None:
    """Print what a kernel has written: main1, or SESSION:sub1."""
    request = LogRequest(follow, tail, timestamps, app)
    session, kernel = split_kernel(reference)
    with opened_backend() as backend, backend.log(session, kernel, request) as pieces:
        for piece in pieces:
            _write(piece)


@click.command()
@click.argument("reference", metavar="SESSION[:KERNEL]", shell_complete=complete_session)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--print", "print_only", is_flag=True, help="Print the plain ssh command for another machine instead.")
def ssh(reference: str, command: tuple[str, ...], print_only: bool) -> NoReturn:
    """Log in to a kernel by ssh: main1, or SESSION:sub1 through main1. With COMMAND, run that."""
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
    try:
        os.execvp("ssh", ["ssh", "-F", str(config), kernel.name, *command])  # noqa: S606 - no shell is needed
    except FileNotFoundError:
        raise MusterError("there is no ssh on this machine; install openssh-client, or use `muster exec`") from None


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("reference", metavar="SESSION[:KERNEL]", shell_complete=complete_session)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(reference: str, command: tuple[str, ...]) -> NoReturn:
    """Run a command in a kernel: `muster exec train:sub1 -- nvidia-smi`. Its exit code is ours."""
    from muster.engine.agent_engine import container_of  # noqa: PLC0415 - the Docker SDK loads slowly
    from muster.engine.command import run_in  # noqa: PLC0415

    with opened_service() as service:
        session, kernel = _found(service, reference)
        agent = agent_of(service.agents.all(), session, kernel)
        note_sessions([session])
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with container_of(agent, kernel) as container:
        raise click.exceptions.Exit(run_in(container, command, terminal=terminal))


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("reference", metavar="SESSION", shell_complete=complete_session)
@click.option("--tasks", "-n", type=click.IntRange(1, MAX_TASKS), metavar="N", help="N processes over all kernels.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(reference: str, tasks: int | None, command: tuple[str, ...]) -> NoReturn:
    """Run a command in every kernel of a session: `muster run train -- nvidia-smi`.

    Lines of its output begin with the kernel's name. The highest of its exit codes is ours. Ctrl-C ends it everywhere.
    Within the session `muster-run` does the same.
    """
    from muster.engine.agent_engine import container_of  # noqa: PLC0415 - the Docker SDK loads slowly
    from muster.engine.command import run_in  # noqa: PLC0415

    with opened_service() as service:
        session, kernel = _found(service, reference)
        if kernel.rank != 0:
            raise BadInputError(f"SESSION: {reference} is one kernel; use `muster exec {reference} -- COMMAND`")
        agent = agent_of(service.agents.all(), session, kernel)
        runner = f"{service.settings.launch_policy().runtime_path}/bin/muster-run"
        note_sessions([session])
    count = () if tasks is None else ("-n", str(tasks))
    with container_of(agent, kernel) as container:
        # Our end of its standard input stays open: by its end muster-run learns that we have gone.
        code = run_in(container, [runner, "--tied", *count, "--", *command], terminal=False, reads_input=False)
    raise click.exceptions.Exit(code)


def _found(service: Service, reference: str) -> tuple[Session, Kernel]:
    name, kernel_name = split_kernel(reference)
    session = service.queries.find(name)
    return session, kernel_named(session, kernel_name)


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
