"""`terminate`, `cancel`."""

import click

from muster.cli.context import complete_session, current_user, json_option, sessions
from muster.cli.output import print_json
from muster.cli.progress import follow
from muster.core.errors import BadInputError
from muster.core.session import FINAL
from muster.service.views import session_json


@click.command()
@click.argument("references", metavar="SESSION...", nargs=-1, shell_complete=complete_session)
@click.option("--all", "everything", is_flag=True, help="Every session of mine that has not ended.")
@click.option("--wait", is_flag=True, help="Return when they have ended and nothing of them is left on the agents.")
@json_option
def terminate(references: tuple[str, ...], everything: bool, wait: bool, as_json: bool) -> None:
    """End sessions."""
    with sessions() as service:
        if everything:
            references = tuple(session.id for session in service.store.search(owner=current_user()))
        elif not references:
            raise BadInputError("SESSION: none is given; name one, or use --all")
        ended = service.terminate(references, current_user())
        if wait:
            ended = follow(service, ended, lambda session: session.state in FINAL, quiet=as_json)
        ended = list(service.store.get([session.id for session in ended]).values())
    if as_json:
        print_json([session_json(session) for session in ended])
    elif not wait:
        for session in ended:
            click.echo(f"{session.name} is {session.state}")


@click.command()
@click.argument("references", metavar="SESSION...", nargs=-1, required=True, shell_complete=complete_session)
@json_option
def cancel(references: tuple[str, ...], as_json: bool) -> None:
    """Cancel sessions that are still pending."""
    with sessions() as service:
        found = service.terminate(references, current_user(), only_pending=True)
        found = list(service.store.get([session.id for session in found]).values())
    if as_json:
        print_json([session_json(session) for session in found])
    else:
        for session in found:
            click.echo(f"{session.name} is {session.state}")
