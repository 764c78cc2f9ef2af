"""`rename`, `extend`, `restart`."""

import click

from muster.cli.audit import note_sessions
from muster.cli.context import complete_session, json_option, opened_backend
from muster.cli.output import print_json
from muster.cli.progress import follow
from muster.cli.sessions.rows import print_states
from muster.core.model.session import SessionState
from muster.core.values.errors import BadInputError
from muster.core.values.units import exact_duration, parse_duration, timestamp


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
@click.argument("reference", metavar="SESSION", shell_complete=complete_session)
@click.argument("time", metavar="TIME")
@json_option
def extend(reference: str, time: str, as_json: bool) -> None:
    """Give a running session more time.

    TIME is added to its time limit: 30 (minutes), 30m, 2h or 1-12:00:00. By the name of an array all of it that runs.
    Sites bound what users may add; administrators may add any time.
    """
    try:
        seconds = parse_duration(time)
    except ValueError as error:
        raise BadInputError(f"TIME: {error}; write 30m or 2h, for example") from None
    with opened_backend() as backend:
        extended = backend.extend([reference], seconds)
        note_sessions(extended)
    if as_json:
        print_json(extended)
        return
    for session in extended:
        ends = timestamp((session.started_at or 0.0) + (session.time_limit_s or 0))
        click.echo(f"{session.name} may run for {exact_duration(session.time_limit_s or 0)}, until {ends}")


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
