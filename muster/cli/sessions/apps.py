"""How a session's apps look in `muster show`."""

from collections.abc import Sequence

import click

from muster.cli.output import print_table
from muster.core.model.apps import AppState, AppView


def print_apps(session: str, apps: Sequence[AppView]) -> None:
    """The part of `muster show` about apps."""
    rows = [(view.app.name, view.app.port, view.state or "-", view.reason or "-") for view in apps]
    print_table(("APP", "PORT", "STATE", "REASON"), rows)
    if any(view.state in {AppState.HEALTHY, AppState.STARTING} for view in apps):
        click.echo(f"Open one with `muster open {session} APP`.")
    click.echo()
