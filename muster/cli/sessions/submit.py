"""`submit`: a session spec from flags, a file, a job script, or all of them."""

import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from muster.cli.audit import note_no_change, note_sessions
from muster.cli.context import json_option, opened_backend
from muster.cli.output import print_json
from muster.cli.progress import exit_code_of, follow, has_ended, runs, wait_timeout_option
from muster.cli.sessions.dry_run import print_dry_run, print_warnings
from muster.cli.sessions.rows import name_of
from muster.cli.sessions.slurm_scripts import drop_lost_logs, from_sbatch_lines, refuse_wrong_lines
from muster.cli.sessions.spec_files import session_file, variables_of, with_texts
from muster.core.spec.sbatch import session_name
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError, NameTakenError
from muster.service.backend import Backend
from muster.service.sessions.views import SessionView, SubmittedView, WaitView

_MARK = "#MUSTER"
_SBATCH = "muster.sbatch"
_TRIES = 3
_ASSIGNMENTS = ("env", "labels")
# Two ways to say one thing.
_EITHER = ("tasks", "tasks_per_kernel")
# `script` is a field too, but on the command line it is a path.
_FLAGGED = {name for name, field in SessionSpec.model_fields.items() if isinstance(field.json_schema_extra, dict)}


def _spec_options() -> list[click.Parameter]:
    """Return an option for each field of the spec that has flags.

    Values stay text: the spec itself checks them, all at once.
    """
    options: list[click.Parameter] = []
    for name, field in SessionSpec.model_fields.items():
        extra = field.json_schema_extra
        if not isinstance(extra, dict):
            continue
        choices = [choice for choice in _literals(field.annotation) if isinstance(choice, str)]
        flags: Any = extra["flags"]
        if field.annotation is bool:
            options.append(click.Option([*flags, name], is_flag=True, help=field.description))
            continue
        options.append(
            click.Option(
                [*flags, name],
                metavar=str(extra["metavar"] or "|".join(choices)),
                multiple=bool(extra["multiple"]),
                help=field.description,
                shell_complete=_completer(choices),
            )
        )
    return options


def _literals(annotation: object) -> list[object]:
    found: list[object] = []
    for argument in get_args(annotation):
        found += _literals(argument) if get_args(argument) else [argument]
    return found


def _completer(choices: Sequence[str]) -> Any:  # noqa: ANN401 - click's own callback type is not public
    return lambda _ctx, _param, incomplete: [choice for choice in choices if choice.startswith(incomplete)]


class _SubmitCommand(click.Command):
    """A command that knows which words came after `--`: those are a command, never a job script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            ctx.meta["muster.command"] = args[cut + 1 :]
            args = args[:cut]
        return super().parse_args(ctx, args)


@click.command(cls=_SubmitCommand)
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
@click.option(
    "--env-file",
    "env_files",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File of lines NAME=VALUE; --env wins over it.",
)
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
    spec = _merged(session_file(file) if file else {}, _from_script(ctx, script), _given(ctx))
    command = _command_behind_dashes(ctx)
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
        submitted, impossible = done.items, done.impossible
        note_sessions(submitted)
        if not (as_json and wait):
            _announce(submitted, quiet=quiet, as_json=as_json)
        print_warnings(done.warnings)
        _warn([(session, impossible[session.id]) for session in submitted if session.id in impossible])
        if wait:
            reached = has_ended if submitted[0].type == "batch" else runs
            ended = follow(backend, submitted, reached, timeout_s=wait_timeout, quiet=quiet or as_json)
            if as_json:
                print_json(ended)
            ctx.exit(max(exit_code_of(session) for session in ended))


def _command_behind_dashes(ctx: click.Context) -> str | None:
    """Return the command that stands behind `--`; None without any. Raises BadInputError."""
    words: list[str] | None = ctx.meta.get("muster.command")
    if words is None:
        return None
    if not words:
        raise BadInputError("command: nothing stands behind --; write the command there")
    if ctx.get_parameter_source("command") is ParameterSource.COMMANDLINE:
        given: str = ctx.params["command"]
        # sbatch and docker run take -c for CPUs.
        cores = "; cores are asked for by --cpu" if given.isdecimal() else ""
        raise BadInputError(
            f"command: {given!r} is given by --command, and another one behind --; give one of them{cores}"
        )
    return shlex.join(words) if len(words) > 1 else words[0]


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


def _warn(impossible: Sequence[tuple[SessionView, WaitView]]) -> None:
    alike: dict[tuple[str, str], list[SessionView]] = {}
    for session, wait in impossible:
        alike.setdefault((session.array_id or session.id, wait.message), []).append(session)
    for (_, message), same in alike.items():
        click.echo(f"muster: {name_of(same)} can never start: {message}", err=True)


def _merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the layers. Later ones win, field by field; in what holds NAME=VALUE, name by name."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if not layer.keys().isdisjoint(_EITHER):
            merged = {field: value for field, value in merged.items() if field not in _EITHER}
        both = {
            field: _by_name(merged[field]) | _by_name(layer[field])
            for field in _ASSIGNMENTS
            if _can_be_read(merged.get(field)) and _can_be_read(layer.get(field))
        }
        merged |= {**layer, **both}
    return merged


def _can_be_read(value: object) -> bool:
    """Return whether the value holds NAME=VALUE; any other is left for the spec to refuse."""
    return isinstance(value, Mapping) or (isinstance(value, list) and all("=" in str(item) for item in value))


def _by_name(value: Any) -> dict[str, Any]:  # noqa: ANN401 - either form of the spec's field
    return dict(value) if isinstance(value, Mapping) else dict(str(item).split("=", 1) for item in value)


def _given(ctx: click.Context) -> dict[str, Any]:
    """Return the spec's fields that were given as flags in this context."""
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in ctx.params.items()
        if name in _FLAGGED and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return _merged({"env": variables_of(ctx.params["env_files"])} if ctx.params["env_files"] else {}, with_texts(given))


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
    given = _given(context)
    if foreign := _foreign(context):
        raise BadInputError(
            f"{path}: {_MARK} {foreign} is no flag of the session spec; write it behind `muster submit` itself"
        )
    sbatch = ctx.meta[_SBATCH] = from_sbatch_lines(path, text)
    # Slurm takes scripts of any name.
    own = {"name": path.stem} if sbatch is None else {"name": session_name(path.stem) or "job", **sbatch.fields}
    return {**_merged(own, given), "script": text}


def _foreign(script: click.Context) -> str | None:
    """Return the first word of a script's lines that its session's spec has no field for; None without any."""
    if "muster.command" in script.meta:
        return "--"
    for option in script.command.params:
        is_given = script.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if is_given and option.name not in {*_FLAGGED, "env_files"}:
            return option.opts[0] if isinstance(option, click.Option) else str(script.params[option.name or ""])
    return None


def _public_keys(files: Sequence[Path]) -> list[str]:
    try:
        directory = Path.home() / ".ssh"
        paths = files or (sorted(directory.glob("id_*.pub")) if directory.is_dir() else [])
        return [path.read_text(encoding="utf-8").strip() for path in paths]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"--ssh-key: a key cannot be read: {error}") from None


submit.params = [submit.params[0], *_spec_options(), *submit.params[1:]]
