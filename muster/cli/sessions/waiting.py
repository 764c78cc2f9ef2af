"""`wait`: block until sessions have ended, or run."""

import click

from muster.cli.context import complete_session, json_option, opened_backend
from muster.cli.output import print_json
from muster.cli.progress import exit_code_of, follow, has_ended, runs, wait_timeout_option


@click.command()
@click.argument("references", metavar="SESSION...", nargs=-1, required=True, shell_complete=complete_session)
@click.option(
    "--for",
    "awaited",
    type=click.Choice(["ended", "running"]),
    default="ended",
    show_default=True,
    help="What to wait for; what has ended will not run any more, and is not waited for.",
)
@wait_timeout_option("--timeout", "the sessions go on")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@json_option
@click.pass_context
def wait(
    ctx: click.Context, references: tuple[str, ...], awaited: str, timeout: float | None, quiet: bool, as_json: bool
) -> None:
    """Wait until sessions have ended; by the name of an array all of it.

    Progress goes to standard error. The exit code is the command's, or 1 where a session failed for anything else;
    of several sessions the highest. It is also 1 where the time to wait is over.
    """
    with opened_backend() as backend:
        sessions = backend.named(references)
        reached = has_ended if awaited == "ended" else runs
        now = follow(backend, sessions, reached, timeout_s=timeout, quiet=quiet or as_json)
    if as_json:
        print_json(now)
    ctx.exit(max(exit_code_of(session) for session in now))
