"""`submit --dry-run`: what would become of sessions, without queueing them."""

import click

from muster.cli.output import print_json
from muster.cli.sessions.why import print_suggestions, surroundings
from muster.core.whatif.explain import explain, placed_where
from muster.service.questions.views import DryRunItemView, DryRunView

STARTS, WAITS, NEVER = 0, 1, 2
_MOST_SHOWN = 10


def print_dry_run(dry_run: DryRunView, *, as_json: bool) -> int:
    """Print where the sessions would start now, or why not and what would let them. Return the exit code."""
    items = dry_run.items
    if as_json:
        print_json(items)
    else:
        for item in items[:_MOST_SHOWN]:
            _print_item(item, dry_run)
        if len(items) > 1:
            click.echo(f"{sum(item.starts_now for item in items)} of {len(items)} sessions would start now")
    if any(item.never_starts for item in items):
        return NEVER
    return WAITS if any(item.wait for item in items) else STARTS


def _print_item(item: DryRunItemView, dry_run: DryRunView) -> None:
    if item.starts_now:
        click.echo(f"{item.name} would start now, {item.mode}:")
        for line in placed_where(item.kernels, dry_run.gpu_indexes):
            click.echo(f"  {line}")
        return
    if item.wait is None:
        return
    around = surroundings(dry_run.names)
    verb = "would never start" if item.never_starts else "would wait"
    click.echo(f"{item.name} {verb}: {item.wait.message}")
    for line in explain(item, item.wait, item.wait.position or 0, around, advice=False):
        click.echo(f"  {line}")
    print_suggestions(item.suggestions, around)
