"""`reservation create`, `reservation ls`, `reservation rm`."""

import time

import click

from muster.cli.audit import note_content
from muster.cli.context import current_user, json_option, opened_service
from muster.cli.output import print_json, print_table
from muster.core.model.reservation import Reservation
from muster.core.values.errors import BadInputError
from muster.core.values.units import parse_duration, timestamp
from muster.service.agents.reservations import window
from muster.service.agents.views import ReservationView


def complete_reservation(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    try:
        with opened_service() as service:
            return [r.name for r in service.reservations.all() if r.name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a shell's completion has nowhere to show an error
        return []


@click.group("reservation")
def reservation_group() -> None:
    """Set agents aside for a time: for some users, or for nobody (maintenance)."""


@reservation_group.command()
@click.argument("name")
@click.option("--begin", metavar="TIME", default="now", help="2026-11-22T08:00, 08:00 or +2h; now by default.")
@click.option("--end", metavar="TIME", help="In the same forms; +2h and 08:00 count from the begin.")
@click.option("--duration", metavar="TIME", help="Instead of --end: minutes, 30m, 2h, 1-12:00:00.")
@click.option("--agent", "-w", "agents", metavar="AGENT", multiple=True, help="Only this agent; may be repeated.")
@click.option("--group", "-g", metavar="GROUP", help="All agents of this resource group.")
@click.option("--user", "-u", "users", metavar="USER", multiple=True, help="Whose sessions may start; may be repeated.")
@click.option("--project", "-P", "projects", metavar="PROJECT", multiple=True, help="Likewise, by project.")
@click.option(
    "--reason", metavar="TEXT", default="", help="Shown in lists, and by `muster why` of sessions that wait for it."
)
@json_option
def create(
    name: str,
    begin: str,
    end: str | None,
    duration: str | None,
    agents: tuple[str, ...],
    group: str | None,
    users: tuple[str, ...],
    projects: tuple[str, ...],
    reason: str,
    as_json: bool,
) -> None:
    """Set agents aside: all agents, unless --agent or --group names some.

    From begin to end they take only sessions of the users and projects named; with none named it is a maintenance
    window. No session starts that might still run when it begins: give sessions a --time-limit. What runs already is
    left alone; `muster agent drain --plan` tells when it ends.
    """
    if agents and group is not None:
        raise BadInputError("--group: agents are named already; give either --agent or --group")
    begins_at, ends_at = window(begin, _end(end, duration), time.time())
    reservation = Reservation(
        name=name,
        begins_at=begins_at,
        ends_at=ends_at,
        resource_group=group,
        agents=frozenset(agents),
        users=frozenset(users),
        projects=frozenset(projects),
        reason=reason.strip() or f"made by {current_user()}",
    )
    with opened_service() as service:
        running_into = service.reservations.create(reservation)
        note_content(after=ReservationView.of(reservation))
    if as_json:
        ids = [{"id": session.id, "name": session.name} for session in running_into]
        print_json({**ReservationView.of(reservation).as_json(), "running_into": ids})
        return
    click.echo(
        f"{name}: {_whom(reservation)} from {timestamp(begins_at)} to {timestamp(ends_at)} on {_agents(reservation)}"
    )
    if running_into:
        names = ", ".join(session.name for session in running_into)
        click.echo(f"sessions that run now and may still run when it begins: {names}", err=True)


def _end(end: str | None, duration: str | None) -> str:
    if (end is None) == (duration is None):
        raise BadInputError("--end: say when it is over; give either --end or --duration")
    if duration is None:
        return str(end)
    try:
        return f"+{parse_duration(duration)}s"
    except ValueError as error:
        raise BadInputError(f"--duration: {error}; write minutes, 30m, 2h, 1-12:00:00") from None


@reservation_group.command("ls")
@click.option("--all", "-a", "everything", is_flag=True, help="Also those that are over.")
@json_option
def ls_(everything: bool, as_json: bool) -> None:
    """List reservations and maintenance windows."""
    now = time.time()
    with opened_service() as service:
        found = [r for r in service.reservations.all() if everything or r.ends_at > now]
    if as_json:
        print_json([ReservationView.of(reservation) for reservation in found])
        return
    print_table(
        ("NAME", "STATE", "BEGIN", "END", "AGENTS", "FOR", "REASON"),
        [
            (r.name, _state(r, now), timestamp(r.begins_at), timestamp(r.ends_at), _agents(r), _whom(r), r.reason)
            for r in found
        ],
    )


@reservation_group.command()
@click.argument("name", shell_complete=complete_reservation)
@json_option
def rm(name: str, as_json: bool) -> None:
    """Take a reservation back."""
    with opened_service() as service:
        removed = ReservationView.of(service.reservations.remove(name))
        note_content(before=removed)
    if as_json:
        print_json(removed)
    else:
        click.echo(f"{name} is taken back")


def _state(reservation: Reservation, now: float) -> str:
    if reservation.ends_at <= now:
        return "over"
    return "active" if reservation.begins_at <= now else "coming"


def _agents(reservation: Reservation) -> str:
    if reservation.agents:
        return ",".join(sorted(reservation.agents))
    return f"group {reservation.resource_group}" if reservation.resource_group else "all agents"


def _whom(reservation: Reservation) -> str:
    if reservation.is_maintenance:
        return "maintenance"
    return ",".join(
        [
            *(f"user {user}" for user in sorted(reservation.users)),
            *(f"project {p}" for p in sorted(reservation.projects)),
        ]
    )
