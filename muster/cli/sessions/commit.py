"""`commit`: a running kernel into an image."""

import sys
from typing import TYPE_CHECKING

import click

from muster.cli.context import (
    asks_server,
    complete_session,
    current_user,
    json_option,
    opened_backend,
    opened_service,
    split_kernel,
)
from muster.cli.output import print_json
from muster.cli.sync_progress import SyncProgress, outcome_json
from muster.core.values.errors import BadInputError
from muster.core.values.units import format_bytes
from muster.service.images.views import CommittedImageView
from muster.service.service import Service

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from muster.service.images.commits import Commit
    from muster.service.images.distribution import Synced


@click.command()
@click.argument("reference", metavar="SESSION[:KERNEL]", shell_complete=complete_session)
@click.argument("name", metavar="NAME:TAG")
@click.option("--message", "-m", default="", metavar="TEXT", help="Its description in `muster images`.")
@click.option("--public", is_flag=True, help="Everyone may use it, not only you.")
@click.option("--sync", "copies", is_flag=True, help="Copy it to all agents of the session's resource group at once.")
@json_option
def commit(reference: str, name: str, message: str, public: bool, copies: bool, as_json: bool) -> None:
    """Make an image of a running kernel: main1, or SESSION:sub1.

    The kernel stands still for as long as its files are copied. Keys, mounted folders and what was written to the log
    do not come along, nor do the session's environment and command. The image is then in the catalog as NAME:TAG, and
    on the agent where it was made; another agent gets it from there when a session needs it.
    """
    progress = SyncProgress(shown=sys.stderr.isatty() and not as_json)
    session, kernel = split_kernel(reference)
    outcomes: list[Synced] = []
    if asks_server():
        if copies:
            raise BadInputError("--sync: it needs the control node; leave it out, and agents get the image when needed")
        with opened_backend() as backend:
            image = backend.images.commit(
                *(session, kernel, name),
                message=message,
                public=public,
                progressed=lambda done, total: progress.note(name, done, total),
            )
        progress.end(name)
        _say(image, as_json=as_json)
    else:
        # The Docker SDK loads slowly.
        from muster.service.images.commits import CommitRequest  # noqa: PLC0415

        request = CommitRequest(kernel, name, message, public)
        request.checked()
        with opened_service() as service:
            planned = service.planned_commit(service.queries.find(session), request, current_user())
            made = service.commit(planned, lambda done, total: progress.note(planned.agent.id, done, total))
            image = CommittedImageView.of(made)
            progress.end(planned.agent.id)
            _say(image, as_json=as_json)
            if copies:
                outcomes = _copied(service, planned, progress, as_json=as_json)
    if as_json:
        print_json({**image.as_json(), "targets": [outcome_json(outcome) for outcome in outcomes]})
    if any(outcome.error for outcome in outcomes):
        raise click.exceptions.Exit(1)


def _say(image: CommittedImageView, *, as_json: bool) -> None:
    if not as_json:
        click.echo(f"{image.reference} ({format_bytes(image.size_bytes)}) is made of {image.parent}")


def _copied(service: Service, planned: "Commit", progress: SyncProgress, *, as_json: bool) -> list["Synced"]:
    from muster.service.images.distribution import image_sync  # noqa: PLC0415 - the Docker SDK loads slowly

    agent = planned.agent
    agents, ids = service.agents.all(), service.image_ids()
    sync = image_sync(agents, planned.image.reference, ids, source_id=agent.id, group=agent.resource_group)
    return service.copy_image(sync, progress.note, progress.finished if not as_json else lambda _outcome: None)
