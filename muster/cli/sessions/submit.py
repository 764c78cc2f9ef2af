"""`submit`: a session spec from flags, a file, a job script, or all of them."""

import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from muster.cli.audit import note_no_change, note_sessions
from muster.cli.context import json_option, opened_backend
from muster.cli.output import print_json
from muster.cli.progress import exit_code_of, follow, has_ended, runs, wait_timeout_option
from muster.cli.sessions.dry_run import print_dry_run
from muster.cli.sessions.queued import print_warnings, warn_of_impossible
from muster.cli.sessions.rows import name_of
from muster.cli.sessions.slurm_scripts import drop_lost_logs, from_sbatch_lines, refuse_wrong_lines
from muster.cli.sessions.spec_files import session_file
from muster.cli.sessions.spec_flags import (
    FLAGGED,
    WORDS,
    SpecCommand,
    command_behind_dashes,
    env_file_option,
    given_fields,
    spec_options,
)
from muster.core.spec.merging import merged
from muster.core.spec.sbatch import session_name
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError, NameTakenError
from muster.service.backend import Backend
from muster.service.sessions.views import SessionView, SubmittedView

_MARK = "#MUSTER"
_SBATCH = "muster.sbatch"
_TRIES = 3


@click.command(cls=SpecCommand)
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.option(
    "--file", "-f", "file", type=click.Path(path_type=Path), help="Session file (YAML or JSON); flags win over it."
)
@click.option(
    "--ssh-key",
    "ssh_key_files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Public key file that may log in to main1; those in ~/.ssh by default.",
)
@env_file_option
@click.option("--count", default=1, metavar="N", type=int, help="Queue N sessions at once: NAME-1, NAME-2, …")
@click.option("--owner", help="Whose session it is; you by default.")
@click.option(
    "--wait",
    is_flag=True,
    help="Show progress until it runs; for a batch session until it ends, whose exit code is then ours.",
)
@wait_timeout_option("--wait-timeout", "the session goes on")
@click.option("--quiet", "-q", is_flag=True, help="Print the session's id only.")
@click.option(
    "--dry-run",
    "tries",
    is_flag=True,
    help="Queue nothing; say whether it would start now and where, or what would let it. Exit code 0: it would start, "
    "1: it would wait, 2: never.",
)
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the session file, and do nothing else.")
@json_option
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    script: Path | None,
    file: Path | None,
    ssh_key_files: tuple[Path, ...],
    env_files: tuple[Path, ...],
    count: int,
    owner: str | None,
    wait: bool,
    wait_timeout: float | None,
    quiet: bool,
    tries: bool,
    schema: bool,
    as_json: bool,
    **flags: object,
) -> None:
    r"""Queue a session.

    \b
      muster submit --name lab --cluster-size 3 --cpu 2 --mem 4G
      muster submit --gpu 1 --time-limit 2h -- python train.py
      muster submit -f session.yml --priority 30
      muster submit job.sh          (a script whose #MUSTER lines carry flags, or one for Slurm)

    A wrong spec gets all its errors in one answer, and nothing is queued.
    """
    del flags, env_files
    if schema:
        print_json(SessionSpec.model_json_schema(mode="validation"))
        return
    _check_wait(wait_timeout, waits=wait)
    spec = merged(session_file(file) if file else {}, _from_script(ctx, script), given_fields(ctx))
    command = command_behind_dashes(ctx)
    if command is not None:
        spec["command"] = command
    sbatch = ctx.meta.get(_SBATCH)
    if sbatch is not None:
        drop_lost_logs(spec, sbatch.fields)
    spec.setdefault("ssh_keys", _public_keys(ssh_key_files))
    with opened_backend() as backend:
        if sbatch is not None:
            refuse_wrong_lines(sbatch, spec, owner, backend)
        if tries:
            note_no_change()
            ctx.exit(print_dry_run(backend.dry_run(spec, owner, count), as_json=as_json))
        done = _queued(backend, spec, owner, count, may_rename=sbatch is not None and ctx.params["name"] is None)
        submitted = done.items
        note_sessions(submitted)
        if not (as_json and wait):
            _announce(submitted, quiet=quiet, as_json=as_json)
        print_warnings(done.warnings)
        warn_of_impossible(submitted, done.impossible)
        if wait:
            reached = has_ended if submitted[0].type == "batch" else runs
            ended = follow(backend, submitted, reached, timeout_s=wait_timeout, quiet=quiet or as_json)
            if as_json:
                print_json(ended)
            ctx.exit(max(exit_code_of(session) for session in ended))


def _check_wait(timeout_s: float | None, *, waits: bool) -> None:
    if timeout_s is not None and not waits:
        raise BadInputError("--wait-timeout: nothing is waited for; give --wait too")


def _queued(
    backend: Backend, spec: dict[str, Any], owner: str | None, count: int, *, may_rename: bool
) -> SubmittedView:
    """Queue the sessions. A script for Slurm may be submitted again while it runs: its name then gets an ending."""
    for _ in range(_TRIES if may_rename else 0):
        try:
            return backend.submit(spec, owner, count)
        except NameTakenError:
            spec = {**spec, "name": f"{spec['name']}-{secrets.token_hex(2)}"}
    return backend.submit(spec, owner, count)


def _announce(submitted: Sequence[SessionView], *, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(submitted)
        return
    if quiet:
        click.echo("\n".join(session.id for session in submitted))
    elif submitted[0].array_id:
        click.echo(f"Submitted {name_of(submitted)}: {len(submitted)} sessions")
    else:
        for session in submitted:
            click.echo(f"Submitted {session.name} {session.id}")


def _from_script(ctx: click.Context, path: Path | None) -> dict[str, Any]:
    """Return the script's text, and the flags on its #MUSTER and #SBATCH lines before its first command."""
    if path is None:
        return {}
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or error
        raise BadInputError(f"SCRIPT: {path} cannot be read: {cause}; a command goes behind --") from None
    if not text.startswith("#!"):
        raise BadInputError(
            f"SCRIPT: {path} does not begin with #!; a command goes behind --, a session file behind -f"
        )
    words: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(_MARK):
            try:
                words += shlex.split(line.removeprefix(_MARK), comments=True)
            except ValueError as error:
                raise BadInputError(f"{path}:{number}: {error}") from None
        elif line.strip() and not line.startswith("#"):
            break
    try:
        context = ctx.command.make_context(f"{path}: {_MARK}", list(words))
    except click.UsageError as error:
        raise BadInputError(f"{path}: {error.format_message()}") from None
    given = given_fields(context)
    if foreign := _foreign(context):
        raise BadInputError(
            f"{path}: {_MARK} {foreign} is no flag of the session spec; write it behind `muster submit` itself"
        )
    sbatch = ctx.meta[_SBATCH] = from_sbatch_lines(path, text)
    # Slurm takes scripts of any name.
    own = {"name": path.stem} if sbatch is None else {"name": session_name(path.stem) or "job", **sbatch.fields}
    return {**merged(own, given), "script": text}


def _foreign(script: click.Context) -> str | None:
    """Return the first word of a script's lines that its session's spec has no field for; None without any."""
    if WORDS in script.meta:
        return "--"
    for option in script.command.params:
        is_given = script.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if is_given and option.name not in {*FLAGGED, "env_files"}:
            return option.opts[0] if isinstance(option, click.Option) else str(script.params[option.name or ""])
    return None


def _public_keys(files: Sequence[Path]) -> list[str]:
    try:
        directory = Path.home() / ".ssh"
        paths = files or (sorted(directory.glob("id_*.pub")) if directory.is_dir() else [])
        return [path.read_text(encoding="utf-8").strip() for path in paths]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"--ssh-key: a key cannot be read: {error}") from None


submit.params = [submit.params[0], *spec_options(), *submit.params[1:]]
