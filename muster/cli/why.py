"""`why` and `queue`: the reason for what a session is, in plain words, and how all that wait stand."""

import time
from collections.abc import Sequence

import click

from muster.cli.context import complete_session, json_option, sessions
from muster.cli.output import print_json, print_table, why_text
from muster.core.changes import Suggestion
from muster.core.explain import Surroundings, code_text, explain, moment_text, start_text, stored_wait
from muster.core.session import Session, SessionState
from muster.core.slots import format_slots
from muster.service.views import timestamp
from muster.service.what_if import Queued, WhatIf


@click.command()
@click.argument("session", shell_complete=complete_session)
@click.option("--what-if", "what_if", is_flag=True, help="Also the least changes that would let it start now.")
@json_option
def why(session: str, what_if: bool, as_json: bool) -> None:
    """Say why a session waits, or why it ended.

    What would let it start is found by replaying the scheduler with each change made.
    """
    with sessions() as service:
        found = service.store.find(session)
        wait = stored_wait(found.wait) if found.state is SessionState.PENDING else None
        questions = WhatIf(service)
        position = questions.position(found) if wait else 0
        others = service.store.get(wait.waits_for) if wait else {}
        suggestions = questions.what_would_help(found) if what_if else None
    around = surroundings({other.id: f"{other.name} ({other.state})" for other in others.values()})
    if as_json:
        print_json(
            {
                "id": found.id,
                "name": found.name,
                "state": found.state,
                "reason": found.reason,
                "wait": {**found.wait, "position": position} if wait else None,
                **({} if suggestions is None else {"suggestions": [suggestion_json(s) for s in suggestions]}),
            }
        )
        return
    click.echo(f"{found.name} is {found.state}: {why_text(found)}")
    if wait:
        for line in explain(found, wait, position, around):
            click.echo(f"  {line}")
    if suggestions is not None:
        print_suggestions(suggestions, around)


@click.command()
@click.option("--group", "-g", metavar="GROUP", help="Only this resource group's.")
@json_option
def queue(group: str | None, as_json: bool) -> None:
    """List the sessions that wait, in the order in which they are tried.

    POS is the place among those of the same resource group. CODE says in a word why it waits: see `muster why SESSION`.
    """
    with sessions() as service:
        found = [q for q in WhatIf(service).queue() if group in {None, q.session.spec.resource_group}]
    if as_json:
        print_json([_queued_json(queued) for queued in found])
        return
    around = surroundings({})
    print_table(
        ("POS", "GROUP", "ID", "NAME", "OWNER", "PRIORITY", "SIZE", "RESOURCES", "CODE", "START"),
        [_queued_row(queued, around) for queued in found],
    )


def surroundings(names: dict[str, str]) -> Surroundings:
    return Surroundings(time.time(), _local_time, names)


def print_suggestions(suggestions: Sequence[Suggestion], around: Surroundings) -> None:
    if not suggestions:
        click.echo("  nothing that was tried would let it start")
        return
    click.echo("  any one of these would let it start:")
    for suggestion in suggestions:
        when = "" if suggestion.starts_at is None else f", at {moment_text(suggestion.starts_at, around)}"
        click.echo(f"    {suggestion.text}{when}")


def suggestion_json(suggestion: Suggestion) -> dict[str, object]:
    return {
        "text": suggestion.text,
        "flags": list(suggestion.flags),
        "effort": round(suggestion.effort, 4),
        "starts_at": timestamp(suggestion.starts_at),
    }


def _local_time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _queued_row(queued: Queued, around: Surroundings) -> list[object]:
    session: Session = queued.session
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


def _queued_json(queued: Queued) -> dict[str, object]:
    session = queued.session
    return {
        "id": session.id,
        "name": session.name,
        "owner": session.owner,
        "resource_group": session.spec.resource_group,
        "priority": session.spec.priority,
        "cluster_size": len(session.kernels),
        "slots": {name: getattr(session.slots, name) for name in ("cpu", "mem", "fgpu", "gpu")},
        "submitted_at": timestamp(session.submitted_at),
        "position": queued.wait.position if queued.wait else None,
        "wait": queued.wait.as_dict() if queued.wait else None,
    }
