"""`terminate`, `cancel`, `hold`, `release`."""

from collections.abc import Sequence

import click

from muster.cli.audit import note_sessions
from muster.cli.context import complete_session, json_option, opened_backend
from muster.cli.output import print_json
from muster.cli.progress import follow, has_ended
from muster.cli.sessions.rows import print_states
from muster.core.values.errors import BadInputError
from muster.service.sessions.queries import SessionQuery
from muster.service.sessions.views import SessionView


@click.command()
@click.argument("references", metavar="SESSION...", nargs=-1, shell_complete=complete_session)
@click.option("--all", "everything", is_flag=True, help="Every session of mine that has not ended.")
@click.option("--wait", is_flag=True, help="Return when they have ended and nothing of them is left on the agents.")
@json_option
def terminate(references: tuple[str, ...], everything: bool, wait: bool, as_json: bool) -> None:
    """End sessions; by the name of an array all of it."""
    with opened_backend() as backend:
        if everything and references:
            raise BadInputError("--all: sessions are named as well; name them, or give --all alone")
        if everything:
            references = tuple(session.id for session in backend.search(SessionQuery(mine=True)))
        elif not references:
            raise BadInputError("SESSION: none is given; name one, or use --all")
        ended = backend.terminate(references)
        note_sessions(ended)
        if wait:
            ended = follow(backend, ended, has_ended, quiet=as_json)
    if as_json or not wait:
        _print(ended, as_json=as_json)


@click.command()
@click.argument("references", metavar="SESSION...", nargs=-1, required=True, shell_complete=complete_session)
@json_option
def cancel(references: tuple[str, ...], as_json: bool) -> None:
    """Cancel sessions that are still pending; of an array those that are."""
    with opened_backend() as backend:
        cancelled = backend.terminate(references, only_pending=True)
        note_sessions(cancelled)
    _print(cancelled, as_json=as_json)


@click.command()
@click.argument("references", metavar="SESSION...", nargs=-1, required=True, shell_complete=complete_session)
@json_option
def hold(references: tuple[str, ...], as_json: bool) -> None:
    """Keep pending sessions from starting until they are released."""
    with opened_backend() as backend:
        held = backend.hold(references)
        note_sessions(held)
    _print(held, as_json=as_json)


@click.command()
@click.argument("references", metavar="SESSION...", nargs=-1, required=True, shell_complete=complete_session)
@json_option
def release(references: tuple[str, ...], as_json: bool) -> None:
    """Let held sessions wait for their turn again."""
    with opened_backend() as backend:
        released = backend.release(references)
        note_sessions(released)
    _print(released, as_json=as_json)


def _print(changed: Sequence[SessionView], *, as_json: bool) -> None:
    if as_json:
        print_json(changed)
    else:
        print_states(changed)
