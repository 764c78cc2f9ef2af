"""`rename`, `restart`."""

import click

from muster.cli.audit import note_sessions
from muster.cli.context import complete_session, json_option, opened_backend
from muster.cli.output import print_json
from muster.cli.progress import follow
from muster.cli.sessions.rows import print_states
from muster.core.model.session import SessionState


@click.command()
@click.argument("reference", metavar="SESSION", shell_complete=complete_session)
@click.argument("name", metavar="NEW")
@json_option
def rename(reference: str, name: str, as_json: bool) -> None:
    """Give a session that has not ended another name.

    Its id stays. In its kernels BACKENDAI_SESSION_NAME stays as well, until it is restarted.
    """
    with opened_backend() as backend:
        renamed = backend.rename(reference, name)
        note_sessions([renamed])
    if as_json:
        print_json(renamed)
    else:
        click.echo(f"{renamed.id} is called {renamed.name}")


@click.command()
@click.argument("references", metavar="SESSION...", nargs=-1, required=True, shell_complete=complete_session)
@click.option("--wait", is_flag=True, help="Return when they run again, or have ended.")
@json_option
def restart(references: tuple[str, ...], wait: bool, as_json: bool) -> None:
    """Stop running sessions and launch them again: same ids, same place, fresh containers.

    What they wrote outside of data folders is lost. Where an agent of one does not take it again, it goes back to the
    queue. By the name of an array all of it that runs.
    """
    with opened_backend() as backend:
        restarted = backend.restart(references)
        note_sessions(restarted)
        if wait:
            # None of these is RUNNING: each has begun to stop.
            restarted = follow(backend, restarted, lambda session: session.state is SessionState.RUNNING, quiet=as_json)
    if as_json:
        print_json(restarted)
    else:
        print_states(restarted)
