"""`muster preset`: specs to begin from."""

from pathlib import Path

import click
import yaml

from muster.cli.context import json_option, opened_backend
from muster.cli.output import print_json, print_table
from muster.cli.sessions.spec_files import session_file
from muster.core.values.units import timestamp


@click.group("preset")
def preset_group() -> None:
    """Specs to begin from: yours, and those that the site offers. The launch page shows them too."""


@preset_group.command("ls")
@json_option
def ls(as_json: bool) -> None:
    """List my presets, then the site's."""
    with opened_backend() as backend:
        found = backend.presets.all().items
    if as_json:
        print_json(found)
        return
    rows = [
        (one.name, "me" if one.own else "the site", timestamp(one.changed_at) or "-", one.description or "-")
        for one in found
    ]
    print_table(("NAME", "OF", "SAVED", "DESCRIPTION"), rows)


@preset_group.command("show")
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    r"""Print a preset as a session file; my own one before the site's of that name.

    \b
      muster preset show Notebook > session.yml
      muster submit -f session.yml --mem 8G
    """
    with opened_backend() as backend:
        found = backend.presets.named(name)
    if as_json:
        print_json(found)
    else:
        click.echo(yaml.safe_dump(found.spec, sort_keys=False, allow_unicode=True), nl=False)


@preset_group.command("set")
@click.argument("name")
@click.option(
    "--file", "-f", "file", type=click.Path(path_type=Path), required=True, help="Session file (YAML or JSON)."
)
@json_option
def set_(name: str, file: Path, as_json: bool) -> None:
    """Save a session file as my preset NAME, in place of the one of that name."""
    spec = session_file(file)
    with opened_backend() as backend:
        saved = backend.presets.save(name, spec)
    if as_json:
        print_json(saved)
    else:
        click.echo(f"{name} is saved")


@preset_group.command("rm")
@click.argument("name")
@json_option
def rm(name: str, as_json: bool) -> None:
    """Remove one of my presets."""
    with opened_backend() as backend:
        removed = backend.presets.remove(name)
    if as_json:
        print_json(removed)
    else:
        click.echo(f"{name} is removed")
