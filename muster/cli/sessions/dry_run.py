"""`submit --dry-run`: what would become of sessions, without queueing them."""

import click

from muster.cli.output import print_json
from muster.cli.sessions.queued import print_warnings
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
        first = next((item for item in items if item.wait is not None), None)
        for item in items[:_MOST_SHOWN]:
            _print_item(item, dry_run, suggests=item is first)
        if len(items) > 1 and dry_run.unworked is None:
            click.echo(f"{sum(item.starts_now for item in items)} of {len(items)} sessions would start now")
    if dry_run.unworked is not None:
        print_warnings([dry_run.unworked])
    print_warnings(dry_run.warnings)
    if any(item.never_starts for item in items):
        return NEVER
    return STARTS if all(item.starts_now for item in items) else WAITS


def _print_item(item: DryRunItemView, dry_run: DryRunView, *, suggests: bool) -> None:
    """Print what would become of a session. For others than the first that would not start, no changes were tried."""
    if item.wait is None:
        when = "now" if dry_run.unworked is None else "once somebody works the queue"
        given = f" with {item.size} containers" if item.size != str(item.cluster_size) else ""
        click.echo(f"{item.name} would start {when}{given}, {item.mode}:")
        for line in placed_where(item.kernels, dry_run.gpu_indexes):
            click.echo(f"  {line}")
        return
    around = surroundings(dry_run.names, item.left_out, is_worked=dry_run.unworked is None)
    verb = "would never start" if item.never_starts else "would wait"
    click.echo(f"{item.name} {verb}: {item.wait.message}")
    for line in explain(item, item.wait, item.wait.position or 0, around, advice=False):
        click.echo(f"  {line}")
    if suggests:
        print_suggestions(item.suggestions, around)
