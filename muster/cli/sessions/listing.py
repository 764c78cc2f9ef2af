"""`ls`, `show`."""

from collections.abc import Sequence

import click

from muster.cli.agents.gpu_map import print_kernels_gpus
from muster.cli.context import complete_session, json_option, opened_backend
from muster.cli.output import print_json, print_table
from muster.cli.report import print_uses
from muster.cli.sessions.rows import SESSION_HEADERS, session_rows
from muster.core.model.apps import AppState
from muster.core.model.session import SessionState
from muster.core.spec.end_signal import spell_end_signal
from muster.core.values.slots import format_slots
from muster.core.values.units import exact_duration, format_bytes, parse_duration, timestamp
from muster.service.questions.views import DependencyView, DetailsView
from muster.service.reach.views import SessionAppView
from muster.service.sessions.queries import SessionQuery
from muster.service.sessions.views import StoryLineView, why_text


@click.command()
@click.option("--all", "-a", "everything", is_flag=True, help="Also sessions that have ended.")
@click.option(
    "--state", "states", multiple=True, type=click.Choice([s.value for s in SessionState], case_sensitive=False)
)
@click.option("--mine", is_flag=True, help="Only my own.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the newest N.")
@json_option
def ls(everything: bool, states: tuple[str, ...], mine: bool, limit: int | None, as_json: bool) -> None:
    """List sessions; those that have ended with --all. Sessions of an array that are alike share a line."""
    query = SessionQuery(everything, tuple(SessionState(state.upper()) for state in states), mine, limit)
    with opened_backend() as backend:
        found = backend.search(query)
    if as_json:
        print_json(found)
    else:
        print_table(SESSION_HEADERS, session_rows(found))


@click.command()
@click.argument("session", shell_complete=complete_session)
@json_option
def show(session: str, as_json: bool) -> None:
    """Show a session: its kernels and its story."""
    with opened_backend() as backend:
        details = backend.details(session)
    if as_json:
        print_json(details)
        return
    _print_session(details)
    if details.apps:
        _print_apps(details.name, details.apps)
    if any(kernel.gpus for kernel in details.kernels):
        print_kernels_gpus(details.kernels)
        click.echo()
    print_uses(details.use)
    _print_story(details.story)


def _time_limit(session: DetailsView) -> str | None:
    """Return the limit with what was added to it, and when it is reached."""
    limit, submitted = session.time_limit_s, parse_duration(session.spec["time_limit"] or "1s")
    if limit is None:
        return None
    added = f" (extended by {exact_duration(limit - submitted)})" if limit > submitted else ""
    runs = session.started_at is not None and session.state is SessionState.RUNNING
    ends = f", ends at {timestamp((session.started_at or 0.0) + limit)}" if runs else ""
    return f"{exact_duration(limit)}{added}{ends}"


def _signal(session: DetailsView) -> str | None:
    """Return the signal before the session's end, and when it was last sent."""
    if session.spec["signal"] is None:
        return None
    last = f", the last one at {timestamp(session.signalled_at)}" if session.signalled_at is not None else ""
    return f"{spell_end_signal(session.spec['signal'])}{last}"


def _print_session(session: DetailsView) -> None:
    spec = session.spec
    facts = {
        "Session": f"{session.name}  ({session.id})",
        "Owner": session.owner,
        "Type": session.type,
        "State": session.state,
        "Reason": why_text(session),
        "Result": session.result,
        "Exit code": session.exit_code,
        "Notice": session.notice.strip() if session.notice and session.state is SessionState.RUNNING else None,
        "Group": f"{session.resource_group}, priority {session.priority}, project {session.project}",
        "Array": f"index {session.array_index} of {session.array_name}, {spec['array']}" if session.array_id else None,
        "Cluster": f"{session.size} kernels, {session.cluster_mode}",
        "Resources": format_slots(session.slots),
        "Disk limit": f"{format_bytes(spec['disk'])} in each kernel" if spec["disk"] else None,
        "Time limit": _time_limit(session),
        "Signal": _signal(session),
        "Command": spec["command"],
        "Folders": ", ".join(f"{f.owner}/{f.name}:{f.target}{':ro' if f.read_only else ''}" for f in session.folders),
        "Own values": ", ".join(session.overridden_env),
        "After": _named(spec["after"], session.dependencies),
        "After ok": _named(spec["after_ok"], session.dependencies),
        "After any": _named(spec["after_any"], session.dependencies),
        "Begin": timestamp(spec["begin"]),
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
                kernel.agent or "-",
                kernel.state or "-",
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


def _named(ids: Sequence[str], dependencies: Sequence[DependencyView]) -> str:
    names = [f"{session.name} ({session.state})" for session in dependencies if session.id in ids]
    more = len(ids) - len(names)
    return ", ".join([*names, *([f"and {more} others"] if more else [])])


def _print_story(story: Sequence[StoryLineView]) -> None:
    print_table(("TIME", "STATE", "WHAT HAPPENED"), [(timestamp(line.at), line.to, line.reason) for line in story])


def _print_apps(session: str, apps: Sequence[SessionAppView]) -> None:
    rows = [(app.name, app.port, app.state or "-", app.reason or "-") for app in apps]
    print_table(("APP", "PORT", "STATE", "REASON"), rows)
    if any(app.state in {AppState.HEALTHY, AppState.STARTING} for app in apps):
        click.echo(f"Open one with `muster open {session} APP`.")
    click.echo()
