"""`why` and `queue`: the reason for what a session is, in plain words, and how all that wait stand."""

import time
from collections.abc import Mapping, Sequence

import click

from muster.cli.context import backend, complete_session, json_option
from muster.cli.output import print_json, print_table
from muster.core.model.heartbeat import Unworked
from muster.core.values.slots import format_slots
from muster.core.whatif.explain import Surroundings, code_text, explain, moment_text, start_text
from muster.core.whatif.hypothesis import Suggestion
from muster.service.questions.views import QueuedView, WhyView
from muster.service.questions.what_if import Queued
from muster.service.sessions.views import why_text


@click.command()
@click.argument("session", shell_complete=complete_session)
@click.option("--what-if", "what_if", is_flag=True, help="Also the least changes that would let it start now.")
@json_option
def why(session: str, what_if: bool, as_json: bool) -> None:
    """Say why a session waits, or why it ended.

    What would let it start is found by replaying the scheduler with each change made.
    """
    with backend() as asked:
        told = asked.why(session, what_if=what_if)
    if as_json:
        print_json(WhyView.of(told))
        return
    found, around = told.session, surroundings(told.names, told.unworked)
    click.echo(f"{found.name} is {found.state}: {why_text(found)}")
    if told.wait:
        for line in explain(found, told.wait, told.position, around):
            click.echo(f"  {line}")
    if told.suggestions is not None:
        print_suggestions(told.suggestions, around)


@click.command()
@click.option("--group", "-g", metavar="GROUP", help="Only this resource group's.")
@json_option
def queue(group: str | None, as_json: bool) -> None:
    """List the sessions that wait, in the order in which they are tried.

    POS is the place among those of the same resource group. CODE says in a word why it waits: see `muster why SESSION`.
    """
    with backend() as asked:
        found = [q for q in asked.queue() if group in {None, q.session.spec.resource_group}]
        unworked = asked.unworked()
    if as_json:
        print_json([QueuedView.of(queued) for queued in found])
        return
    around = surroundings({}, unworked)
    print_table(
        ("POS", "GROUP", "ID", "NAME", "OWNER", "PRIORITY", "SIZE", "RESOURCES", "CODE", "START"),
        [_queued_row(queued, around) for queued in found],
    )


def surroundings(names: Mapping[str, str], unworked: Unworked | None = None) -> Surroundings:
    return Surroundings(time.time(), _local_time, names, unworked is None)


def print_suggestions(suggestions: Sequence[Suggestion], around: Surroundings) -> None:
    if not suggestions:
        click.echo("  nothing that was tried would let it start")
        return
    click.echo("  any one of these would let it start:")
    for suggestion in suggestions:
        when = "" if suggestion.starts_at is None else f", at {moment_text(suggestion.starts_at, around)}"
        click.echo(f"    {suggestion.text}{when}")


def _local_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _queued_row(queued: Queued, around: Surroundings) -> list[object]:
    session = queued.session
    return [
        queued.wait.position if queued.wait else "-",
        session.spec.resource_group,
        session.id[:8],
        session.name,
        session.owner,
        session.spec.priority,
        len(session.kernels),
        format_slots(session.slots),
        code_text(queued.wait),
        start_text(queued.wait, around),
    ]
