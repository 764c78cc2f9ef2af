"""`ls`, `show`, `why`."""

from collections.abc import Sequence

import click

from muster.cli.context import complete_session, current_user, json_option, sessions
from muster.cli.output import SESSION_HEADERS, print_json, print_table, session_row, why_text
from muster.core.plan import WaitCode
from muster.core.session import Session, SessionState
from muster.core.slots import format_slots
from muster.service.views import session_json, story_json, timestamp
from muster.store.store import StoryLine


@click.command()
@click.option("--all", "-a", "everything", is_flag=True, help="Also sessions that have ended.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice([s.value for s in SessionState], case_sensitive=False)
)
@click.option("--mine", is_flag=True, help="Only my own.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the newest N.")
@json_option
def ls(everything: bool, states: tuple[str, ...], mine: bool, limit: int | None, as_json: bool) -> None:
    """List sessions; those that have ended with --all."""
    with sessions() as service:
        found = service.store.search(
            ended=everything,
            states=[SessionState(state.upper()) for state in states],
            owner=current_user() if mine else None,
            limit=limit,
        )
    if as_json:
        print_json([session_json(session) for session in found])
    else:
        print_table(SESSION_HEADERS, [session_row(session) for session in found])


@click.command()
@click.argument("session", shell_complete=complete_session)
@json_option
def show(session: str, as_json: bool) -> None:
    """Show a session: its kernels and its story."""
    with sessions() as service:
        found = service.store.find(session)
        story = service.store.story(found.id)
    if as_json:
        print_json({**session_json(found), "story": [story_json(line) for line in story]})
    else:
        _print_session(found)
        _print_story(story)


def _print_session(session: Session) -> None:
    facts = {
        "Session": f"{session.name}  ({session.id})",
        "Owner": session.owner,
        "Type": "batch" if session.spec.is_batch else "interactive",
        "State": session.state,
        "Reason": why_text(session),
        "Result": session.result,
        "Exit code": session.exit_code,
        "Group": f"{session.spec.resource_group}, priority {session.spec.priority}",
        "Cluster": f"{len(session.kernels)} kernels, {session.placed_mode or session.spec.cluster_mode}",
        "Resources": format_slots(session.slots),
        "Command": session.spec.command,
        "Submitted": timestamp(session.submitted_at),
        "Started": timestamp(session.started_at),
        "Ended": timestamp(session.ended_at),
    }
    for name, value in facts.items():
        if value is not None and value != "":
            click.echo(f"{name + ':':<12}{value}")
    click.echo()
    print_table(
        ("KERNEL", "AGENT", "STATE", "EXIT", "ADDRESS", "SSH", "RESOURCES", "IMAGE"),
        [
            (
                kernel.name,
                kernel.allocation.agent_id if kernel.allocation else "-",
                kernel.container_state or "-",
                "-" if kernel.exit_code is None else kernel.exit_code,
                kernel.address or "-",
                kernel.ssh_port or "-",
                format_slots(kernel.slots),
                kernel.image,
            )
            for kernel in session.kernels
        ],
    )
    click.echo()


def _print_story(story: Sequence[StoryLine]) -> None:
    print_table(
        ("TIME", "STATE", "WHAT HAPPENED"), [(timestamp(line.at), line.to_state, line.reason) for line in story]
    )


@click.command()
@click.argument("session", shell_complete=complete_session)
@json_option
def why(session: str, as_json: bool) -> None:
    """Say why a session waits, or why it ended."""
    with sessions() as service:
        found = service.store.find(session)
    if as_json:
        print_json(
            {
                "id": found.id,
                "name": found.name,
                "state": found.state,
                "reason": found.reason,
                "wait": found.wait or None,
            }
        )
        return
    click.echo(f"{found.name} is {found.state}: {why_text(found)}")
    wait = found.wait
    if not wait:
        return
    click.echo(f"  place in the queue of group {found.spec.resource_group}: {wait['position']}")
    click.echo(f"  it asks for {format_slots(found.slots)} in {len(found.kernels)} kernels")
    if wait["exhausted"]:
        counts = ", ".join(f"{name} on {count}" for name, count in _items(wait["exhausted"]))
        never = wait["code"] == WaitCode.NEVER_FITS
        when = "even when empty" if never else "free now"
        click.echo(f"  of {wait['agents_considered']} agents, too little {when}: {counts}")
    if wait["filtered"]:
        click.echo("  agents not asked: " + ", ".join(f"{count} {name}" for name, count in _items(wait["filtered"])))


def _items(value: object) -> list[tuple[str, int]]:
    return list(value.items()) if isinstance(value, dict) else []
