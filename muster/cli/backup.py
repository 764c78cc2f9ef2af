"""`backup`, `restore`."""

from dataclasses import asdict
from pathlib import Path

import click

from muster.cli.audit import audited
from muster.cli.context import current_user, json_option
from muster.cli.output import print_json
from muster.core.values.units import format_bytes
from muster.settings import load_settings

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("file", type=_FILE)
@click.option("--force", is_flag=True, help="Replace FILE if it is there already.")
@json_option
def backup(file: Path, force: bool, as_json: bool) -> None:
    """Write the database and the keys of this control node into FILE, while everything runs.

    FILE holds users' secrets and the key that opens them, so keep it as safe as the state directory. Settings,
    inventory and catalog are not in it.
    """
    from muster.service.backup import back_up  # noqa: PLC0415 - it loads the store

    settings = load_settings()
    with audited(settings, current_user()):
        taken = back_up(settings, file, force=force)
    if as_json:
        print_json(asdict(taken))
        return
    keys = f"with {', '.join(taken.keys)}" if taken.keys else "without keys, since there are none"
    click.echo(
        f"backed up the {taken.database} database (migration {taken.migration}), {keys}, to {taken.file}"
        f" ({format_bytes(taken.size_bytes)}); it holds secrets, so keep it safe"
    )


@click.command()
@click.argument("file", type=_FILE, required=False)
@click.option(
    "--in-place",
    is_flag=True,
    help="Instead of FILE: the database that is there was put back by other means, such as PostgreSQL's own.",
)
@click.option("--force", is_flag=True, help="Restore over an existing state, which is put aside.")
@click.option(
    "--no-hold",
    is_flag=True,
    help="Let pending sessions start: none of them can have run since the backup.",
)
@json_option
def restore(file: Path | None, in_place: bool, force: bool, no_hold: bool, as_json: bool) -> None:
    """Put the backup FILE in the place of this control node's state. Stop `muster daemon` and `muster web` first.

    The next pass adopts the sessions that run, also those that were launched after the backup was taken. Pending
    sessions that do not run are held, since they may have run and ended since: release those that have not.
    """
    from muster.service.backup import note_restored  # noqa: PLC0415 - it loads the store
    from muster.service.backup import restore as restore_backup  # noqa: PLC0415

    if (file is None) != in_place:
        raise click.UsageError("give either FILE or --in-place")
    settings = load_settings()
    with audited(settings, current_user()):
        if file is None:
            done = note_restored(settings, hold=not no_hold)
        else:
            done = restore_backup(settings, file, force=force, hold=not no_hold)
    if as_json:
        print_json(asdict(done))
        return
    took = "took the database that is there for a restored one"
    what = took if done.taken_at is None else f"restored the state of {done.taken_at}"
    click.echo(f"{what}, with {done.sessions} sessions that had not ended")
    if done.replaced is not None:
        click.echo(f"what was there before is in {done.replaced}")
    if done.held:
        click.echo(f"{done.held} pending sessions are held unless they run; `muster release SESSION` lets one start")
    click.echo("start `muster daemon` again: its first pass adopts the sessions that run")
