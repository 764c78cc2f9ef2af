"""`logs`, `ssh`, `exec`."""

import os
import shlex
import sys
from typing import Literal, NoReturn

import click

from muster.cli.context import complete_session, sessions, split_kernel
from muster.core.agent import Agent
from muster.core.errors import BadInputError, MusterError, NotPossibleInStateError
from muster.core.session import FINAL, Kernel, Session, SessionState
from muster.engine.agent_engine import container_of
from muster.engine.app_log import app_log
from muster.engine.command import run_in
from muster.service.access import plain_ssh_command, ssh_config
from muster.service.apps import app_named
from muster.service.sessions import Sessions, kernel_named


@click.command()
@click.argument("reference", metavar="SESSION[:KERNEL]", shell_complete=complete_session)
@click.option("--follow", "-f", is_flag=True, help="Go on until the kernel ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@click.option("--timestamps", is_flag=True, help="Before each line, when it was written; while the session runs.")
@click.option("--app", metavar="NAME", help="What this app has written instead; while the session runs.")
def logs(reference: str, follow: bool, tail: int | None, timestamps: bool, app: str | None) -> None:
    """Print what a kernel has written: main1, or SESSION:sub1."""
    if app is not None and timestamps:
        raise BadInputError("--timestamps: apps' lines carry none; leave it out")
    with sessions() as service:
        session, kernel = _found(service, reference)
        if app is not None:
            _print_app_log(service, session, app, tail=tail, follow=follow)
            return
        if session.state in FINAL:
            kept = service.store.log(session.id, kernel.name)
            if kept is None:
                raise NotPossibleInStateError(f"{session.name} is {session.state} and left no log of {kernel.name}")
            _write(kept if tail is None else b"".join(kept.splitlines(keepends=True)[-tail:] if tail else []))
            return
        agent = agent_of(service, session, kernel)
    with container_of(agent, kernel) as container:
        wanted: Literal["all"] | int = "all" if tail is None else tail
        for chunk in container.logs(stream=True, follow=follow, tail=wanted, timestamps=timestamps):
            _write(chunk)


@click.command()
@click.argument("reference", metavar="SESSION[:KERNEL]", shell_complete=complete_session)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--print", "print_only", is_flag=True, help="Print the plain ssh command for another machine instead.")
def ssh(reference: str, command: tuple[str, ...], print_only: bool) -> NoReturn:
    """Log in to a kernel by ssh: main1, or SESSION:sub1 through main1. With COMMAND, run that."""
    with sessions() as service:
        session, kernel = _found(service, reference)
        agent = agent_of(service, session, session.main)
        if print_only:
            click.echo(shlex.join([*plain_ssh_command(service.settings, session, kernel, agent), *command]))
            raise click.exceptions.Exit(0)
        config = ssh_config(service.settings, session, agent)
    try:
        os.execvp("ssh", ["ssh", "-F", str(config), kernel.name, *command])  # noqa: S606 - no shell is wanted
    except FileNotFoundError:
        raise MusterError("there is no ssh on this machine; install openssh-client, or use `muster exec`") from None


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("reference", metavar="SESSION[:KERNEL]", shell_complete=complete_session)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(reference: str, command: tuple[str, ...]) -> NoReturn:
    """Run a command in a kernel: `muster exec train:sub1 -- nvidia-smi`. Its exit code is ours."""
    with sessions() as service:
        session, kernel = _found(service, reference)
        agent = agent_of(service, session, kernel)
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with container_of(agent, kernel) as container:
        raise click.exceptions.Exit(run_in(container, command, terminal=terminal))


def _print_app_log(service: Sessions, session: Session, name: str, *, tail: int | None, follow: bool) -> None:
    app = app_named(session, name)
    if app.command is None:
        raise BadInputError(f"--app: {name} is a port that the session's own program serves; its log is the session's")
    agent = agent_of(service, session, session.main)
    with container_of(agent, session.main) as container:
        runtime_path = service.settings.launch_policy().runtime_path
        for chunk in app_log(container, runtime_path, name, tail=tail, follow=follow):
            _write(chunk)


def _found(service: Sessions, reference: str) -> tuple[Session, Kernel]:
    name, kernel_name = split_kernel(reference)
    session = service.store.find(name)
    return session, kernel_named(session, kernel_name)


def agent_of(service: Sessions, session: Session, kernel: Kernel) -> Agent:
    """Raises NotPossibleInStateError when the session has no containers now."""
    if session.state not in {SessionState.RUNNING, SessionState.TERMINATING} or kernel.allocation is None:
        raise NotPossibleInStateError(f"session {session.name} is {session.state}; it has no containers now")
    for agent in service.snapshot().agents:
        if agent.id == kernel.allocation.agent_id:
            return agent
    raise NotPossibleInStateError(f"agent {kernel.allocation.agent_id} of session {session.name} is not known any more")


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
