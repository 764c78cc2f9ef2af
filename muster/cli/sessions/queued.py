"""What commands say of sessions that were queued or updated just now, and may still go wrong."""

from collections.abc import Iterable, Mapping

import click

from muster.cli.sessions.rows import name_of
from muster.service.sessions.views import SessionView, WaitView


def print_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        click.echo(f"muster: warning: {warning}", err=True)


def warn_of_impossible(sessions: Iterable[SessionView], impossible: Mapping[str, WaitView]) -> None:
    """Print why some of the sessions can never start, a line for those of an array that are alike."""
    alike: dict[tuple[str, str], list[SessionView]] = {}
    for session in sessions:
        if session.id in impossible:
            key = session.array_id or session.id, impossible[session.id].message
            alike.setdefault(key, []).append(session)
    for (_, message), same in alike.items():
        click.echo(f"muster: {name_of(same)} can never start: {message}", err=True)
