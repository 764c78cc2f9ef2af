"""`pass`, `daemon`, `completion`, `version`."""

from dataclasses import asdict

import click

from muster.cli.audit import audited
from muster.cli.context import current_user, json_option
from muster.cli.output import print_json
from muster.core.values.errors import PassInProgressError


@click.command("pass")
@click.option(
    "--wait",
    is_flag=True,
    help="Where a daemon or another pass works the queue, wait until it has gone over all of it.",
)
@click.option(
    "--remove-unknown",
    is_flag=True,
    help="Also remove what sessions of a database before this one have left on agents, now and later.",
)
@json_option
def pass_(wait: bool, remove_unknown: bool, as_json: bool) -> None:
    """Work the queue once: observe, schedule, launch, record. For cron and playbooks.

    Where a daemon or another pass works it, that is asked to go over all of it.
    """
    from muster.core.turn.foreign_kernels import databases_of  # noqa: PLC0415 - libraries load slowly, Ansible's above all
    from muster.service.control_node import opened, work_once  # noqa: PLC0415
    from muster.settings import load_settings  # noqa: PLC0415

    settings = load_settings()
    with opened(settings) as shell:
        if remove_unknown:
            with audited(settings, current_user()):
                shell.store.queue.disown_unknown(databases_of(shell.store.agents.all()))
        try:
            work = work_once(settings, shell, wait=wait)
        except PassInProgressError:
            if as_json:
                print_json({"requested": True})
            else:
                click.echo("requested a pass of what works this queue; with --wait, this ends when that has")
            return
    if as_json:
        print_json({**asdict(work), "changed": work.changed})
    else:
        click.echo(
            f"scheduled {len(work.scheduled)}, started {len(work.started)}, ended {len(work.ended)}, "
            f"failed {len(work.failed)}, waiting {work.waiting}"
        )
        for agent_id, problem in work.problems.items():
            click.echo(f"muster: agent {agent_id}: {problem}", err=True)
    if work.problems:
        raise click.exceptions.Exit(1)


@click.command()
def daemon() -> None:
    """Work the queue until SIGTERM."""
    from muster.cli.command_server import command_server  # noqa: PLC0415
    from muster.cli.log_lines import log_to_stderr  # noqa: PLC0415
    from muster.daemon import run_daemon  # noqa: PLC0415 - Ansible's libraries load slowly
    from muster.settings import load_settings  # noqa: PLC0415

    settings = load_settings()
    log_to_stderr(settings.log_format)
    with command_server() as compiled:
        run_daemon(settings, compiled)


@click.command()
def prepare() -> None:
    """Compile the scheduler for this user, so that nobody has to wait for it later.

    The first decision after an installation or an upgrade would do the same.
    """
    from muster.service.scheduler.compiled_code import compile_placement  # noqa: PLC0415 - numba loads slowly

    seconds = compile_placement()
    click.echo("nothing to do" if seconds is None else f"compiled in {seconds:.0f} s")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell: `source <(muster completion bash)`."""
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - needed here only

    from muster.cli.main import cli  # noqa: PLC0415 - the group imports this module

    kind = get_completion_class(shell)
    if kind is not None:
        click.echo(kind(cli, {}, "muster", "_MUSTER_COMPLETE").source())


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print Muster's version, and those of the software that it uses."""
    from importlib.metadata import version as version_of  # noqa: PLC0415 - needed here only

    versions = {name: version_of(name) for name in ("muster", "ansible-core", "ansible-runner", "docker", "sqlalchemy")}
    if as_json:
        print_json(versions)
    else:
        click.echo("\n".join(f"{name} {number}" for name, number in versions.items()))
