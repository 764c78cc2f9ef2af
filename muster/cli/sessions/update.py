"""`update`: what a session that waits asks for, changed by the flags of `submit`."""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import click

from muster.cli.audit import note_sessions
from muster.cli.context import complete_session, json_option, opened_backend
from muster.cli.output import print_json
from muster.cli.sessions.queued import print_warnings, warn_of_impossible
from muster.cli.sessions.rows import name_of
from muster.cli.sessions.spec_files import session_file
from muster.cli.sessions.spec_flags import (
    SpecCommand,
    command_behind_dashes,
    env_file_option,
    fields_by_word,
    given_fields,
    spec_options,
)
from muster.core.spec.merging import ASSIGNMENTS, merged
from muster.core.values.errors import BadInputError
from muster.service.sessions.views import SessionView

# `rename`, `hold` and `release` are for these.
_LEFT_OUT = frozenset({"name", "hold"})
_FIELDS = fields_by_word(_LEFT_OUT)


def _complete_field(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return sorted(name for name in set(_FIELDS.values()) if name.startswith(incomplete))


@click.command(cls=SpecCommand)
@click.argument("reference", metavar="SESSION", shell_complete=complete_session)
@click.option(
    "--file", "-f", "file", type=click.Path(path_type=Path), help="File with fields of the spec (YAML or JSON)."
)
@env_file_option
@click.option(
    "--unset",
    "unset",
    multiple=True,
    metavar="FIELD",
    shell_complete=_complete_field,
    help="Field that gets its default again, such as begin, after-ok or env.LR.",
)
@json_option
@click.pass_context
def update(
    ctx: click.Context,
    /,
    reference: str,
    file: Path | None,
    env_files: tuple[Path, ...],
    unset: tuple[str, ...],
    as_json: bool,
    **flags: object,
) -> None:
    r"""Change what a session that waits asks for.

    \b
      muster update train --mem 32G --priority 30
      muster update train --time-limit 4h --unset begin
      muster update train --env LR=0.01 -- python train.py --epochs 3

    It keeps its id and its place in the queue. What may be given several times replaces what there was, but for --env
    and --label, which change single names. By the name of an array all of it that waits. Launches that failed no
    longer count.
    """
    del flags, env_files
    given = merged(session_file(file) if file else {}, given_fields(ctx))
    changes = merged(_unset(unset, given), given)
    command = command_behind_dashes(ctx)
    if command is not None:
        changes["command"] = command
    if not changes:
        raise BadInputError("there is nothing to change; give flags such as --mem 32G, see `muster update --help`")
    with opened_backend() as backend:
        done = backend.update(reference, changes)
        note_sessions(done.items)
    if as_json:
        print_json(done)
    else:
        _print_changes(done.items, done.changes)
    print_warnings(done.warnings)
    warn_of_impossible(done.items, done.impossible)


def _unset(fields: Iterable[str], given: Collection[str]) -> dict[str, Any]:
    """Return the changes that give these fields their defaults; `given` are those with new values.

    Raises BadInputError.
    """
    changes: dict[str, Any] = {}
    for word in fields:
        field, dot, name = word.partition(".")
        field = _FIELDS.get(field.replace("-", "_"), "")
        if not field or (dot and field not in ASSIGNMENTS):
            raise BadInputError(f"--unset: {word!r} is no field; name one such as begin, after-ok, env or env.LR")
        if not dot and field in given:
            raise BadInputError(f"--unset: {field} is given a value as well; leave one of them out")
        if not dot:
            changes[field] = None
        elif changes.get(field, {}) is not None:
            changes.setdefault(field, {})[name] = None
    return changes


def _print_changes(updated: Iterable[SessionView], changes: Iterable[str]) -> None:
    what = "; ".join(changes) or "it asked for that already"
    alike: dict[str, list[SessionView]] = {}
    for session in updated:
        alike.setdefault(session.array_id or session.id, []).append(session)
    for same in alike.values():
        click.echo(f"{name_of(same)}: {what}" if len(same) == 1 else f"{name_of(same)}, {len(same)} sessions: {what}")


update.params = [update.params[0], *spec_options(_LEFT_OUT, on_and_off=True), *update.params[1:]]
