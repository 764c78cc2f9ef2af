"""`commit`: a running kernel into an image."""

import sys

import click

from muster.cli.context import complete_session, current_user, json_option, sessions, split_kernel
from muster.cli.output import print_json
from muster.cli.sync_progress import SyncProgress, outcome_json
from muster.core.slots import format_bytes
from muster.service.known_images import committed_json
from muster.service.wake import AGENTS, wake


@click.command()
@click.argument("reference", metavar="SESSION[:KERNEL]", shell_complete=complete_session)
@click.argument("name", metavar="NAME:TAG")
@click.option("--message", "-m", default="", metavar="TEXT", help="What it is, for `muster images`.")
@click.option("--public", is_flag=True, help="Everyone may use it, not only you.")
@click.option("--sync", "copies", is_flag=True, help="Copy it to all agents of the session's resource group at once.")
@json_option
def commit(reference: str, name: str, message: str, public: bool, copies: bool, as_json: bool) -> None:
    """Make an image of a running kernel: main1, or SESSION:sub1.

    The kernel stands still for as long as its files are copied. Keys, mounted folders and what was written to the log
    do not come along, nor do the session's environment and command. The image is then in the catalog as NAME:TAG, and
    on the agent where it was made; another agent gets it from there when a session needs it.
    """
    # The Docker SDK loads slowly.
    from muster.service.commits import CommitWanted, committed, planned_commit  # noqa: PLC0415
    from muster.service.images import image_sync, synced  # noqa: PLC0415

    session_name, kernel_name = split_kernel(reference)
    shown = sys.stderr.isatty() and not as_json
    progress = SyncProgress(shown=shown)
    with sessions() as service:
        wanted = CommitWanted(kernel_name, name, message, public)
        planned = planned_commit(service, service.store.find(session_name), wanted, current_user())
        image = committed(service, planned, lambda done, total: progress.note(planned.agent.id, done, total))
        progress.end(planned.agent.id)
        if not as_json:
            click.echo(f"{image.reference} ({format_bytes(image.size_bytes)}) is made of {image.parent}")
        group = planned.agent.resource_group
        outcomes = []
        if copies:
            copied = image_sync(service.snapshot().agents, image.reference, source_id=planned.agent.id, group=group)
            outcomes = synced(copied, progress.note, progress.finished if not as_json else lambda _outcome: None)
            wake(service.settings, service.store, AGENTS)
    if as_json:
        print_json({**committed_json(image), "targets": [outcome_json(outcome) for outcome in outcomes]})
    if any(outcome.error for outcome in outcomes):
        raise click.exceptions.Exit(1)
