"""`why` and `queue`: the reason for what a session is, in plain words, and how all that wait stand."""

import shlex
import time
from collections.abc import Mapping, Sequence

import click

from muster.cli.context import complete_session, json_option, opened_backend
from muster.cli.output import print_json, print_table
from muster.core.model.session import SessionState
from muster.core.values.slots import format_slots
from muster.core.whatif.explain import Surroundings, code_text, explain, moment_text, start_text
from muster.service.questions.views import QueuedView, SuggestionView
from muster.service.sessions.views import why_text


@click.command()
@click.argument("session", shell_complete=complete_session)
@click.option("--what-if", "what_if", is_flag=True, help="Also the least changes that would let it start now.")
@json_option
def why(session: str, what_if: bool, as_json: bool) -> None:
    """Say why a session waits, or why it ended.

    What would let it start is found by replaying the scheduler with each change made.
    """
    with opened_backend() as backend:
        answer = backend.why(session, what_if=what_if)
    if as_json:
        print_json(answer)
        return
    around = surroundings(answer.names, answer.left_out, is_worked=answer.unworked is None)
    click.echo(f"{answer.name} is {answer.state}: {why_text(answer)}")
    if answer.state is SessionState.RUNNING and answer.size != str(answer.cluster_size):
        click.echo(f"  runs with {answer.size} containers")
    if answer.wait:
        suggested = answer.suggestions is not None
        for line in explain(answer, answer.wait, answer.wait.position or 0, around, suggested=suggested):
            click.echo(f"  {line}")
    if answer.suggestions is not None:
        print_suggestions(answer.suggestions, around)


@click.command()
@click.option("--group", "-g", metavar="GROUP", help="Only this resource group's.")
@json_option
def queue(group: str | None, as_json: bool) -> None:
    """List the sessions that wait, in the order in which they are tried.

    POS is the place among those of the same resource group. CODE says in a word why it waits: see `muster why SESSION`.
    """
    with opened_backend() as backend:
        found = backend.queue(group).items
        is_worked = backend.heartbeat().unworked is None
    if as_json:
        print_json(found)
        return
    around = surroundings({}, is_worked=is_worked)
    print_table(
        ("POS", "GROUP", "ID", "NAME", "OWNER", "PRIORITY", "SIZE", "RESOURCES", "CODE", "START"),
        [_queued_row(queued, around) for queued in found],
    )


def surroundings(names: Mapping[str, str], left_out: Sequence[str] = (), *, is_worked: bool) -> Surroundings:
    return Surroundings(time.time(), _local_time, names, is_worked, left_out)


def print_suggestions(suggestions: Sequence[SuggestionView], around: Surroundings) -> None:
    if not suggestions:
        click.echo("  nothing that was tried would let it start")
        return
    click.echo("  any one of these would let it start:")
    for suggestion in suggestions:
        when = "" if suggestion.starts_at is None else f", at {moment_text(suggestion.starts_at, around)}"
        flags = f": {shlex.join(suggestion.flags)}" if suggestion.flags else ""
        click.echo(f"    {suggestion.text}{when}{flags}")


def _local_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _queued_row(queued: QueuedView, around: Surroundings) -> list[object]:
    return [
        queued.position if queued.wait else "-",
        queued.resource_group,
        queued.id[:8],
        queued.name,
        queued.owner,
        queued.priority,
        queued.size,
        format_slots(queued.slots),
        code_text(queued.wait),
        start_text(queued.wait, around),
    ]
