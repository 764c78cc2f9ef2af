"""Flags of the session spec: an option for each field that has some, and what was given by them."""

import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from muster.cli.sessions.spec_files import variables_of, with_texts
from muster.core.spec.merging import merged
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError

WORDS = "muster.command"
"""The key, in a context's `meta`, of the words behind `--`."""
# `script` is a field too, but on the command line it is a path.
FLAGGED = frozenset(
    name for name, field in SessionSpec.model_fields.items() if isinstance(field.json_schema_extra, dict)
)


def spec_options(left_out: Collection[str] = (), *, on_and_off: bool = False) -> list[click.Parameter]:
    """Return an option for each field of the spec that has flags, but for those that are left out.

    Values stay text: the spec itself checks them, all at once. `on_and_off`: what is true or false has two flags, and
    not only one for what is not its default.
    """
    options: list[click.Parameter] = []
    for name, field in SessionSpec.model_fields.items():
        extra = field.json_schema_extra
        if not isinstance(extra, dict) or name in left_out:
            continue
        choices = [choice for choice in _literals(field.annotation) if isinstance(choice, str)]
        flags: Any = extra["flags"]
        if field.annotation is bool:
            names = [_on_and_off(flags[0])] if on_and_off else flags
            options.append(click.Option([*names, name], is_flag=True, help=field.description))
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


def env_file_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--env-file",
        "env_files",
        multiple=True,
        type=click.Path(path_type=Path),
        help="File of lines NAME=VALUE; --env wins over it.",
    )(function)


def fields_by_word(left_out: Collection[str] = ()) -> dict[str, str]:
    """Return the fields that have flags by their own names and by their flags' words, with underscores."""
    found: dict[str, str] = {}
    for name in sorted(FLAGGED - set(left_out)):
        extra: Any = SessionSpec.model_fields[name].json_schema_extra
        words = (flag.partition("/")[0].removeprefix("--") for flag in extra["flags"] if flag.startswith("--"))
        found |= {name: name, **{word.replace("-", "_"): name for word in words}}
    return found


def _on_and_off(flag: str) -> str:
    """Return `--requeue/--no-requeue` for `--requeue`, and `--no-idle-check/--idle-check` for `--no-idle-check`."""
    if "/" in flag:
        return flag
    word = flag.removeprefix("--")
    return f"{flag}/--{word.removeprefix('no-')}" if word.startswith("no-") else f"{flag}/--no-{word}"


def _literals(annotation: object) -> list[object]:
    found: list[object] = []
    for argument in get_args(annotation):
        found += _literals(argument) if get_args(argument) else [argument]
    return found


def _completer(choices: Sequence[str]) -> Any:  # noqa: ANN401 - click's own callback type is not public
    return lambda _ctx, _param, incomplete: [choice for choice in choices if choice.startswith(incomplete)]


class SpecCommand(click.Command):
    """A command that knows which words came after `--`: those are a command, never a job script."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            ctx.meta[WORDS] = args[cut + 1 :]
            args = args[:cut]
        return super().parse_args(ctx, args)


def command_behind_dashes(ctx: click.Context) -> str | None:
    """Return the command that stands behind `--`; None without any. Raises BadInputError."""
    words: list[str] | None = ctx.meta.get(WORDS)
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


def given_fields(ctx: click.Context) -> dict[str, Any]:
    """Return the spec's fields that were given as flags in this context."""
    given = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in ctx.params.items()
        if name in FLAGGED and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    return merged({"env": variables_of(ctx.params["env_files"])} if ctx.params["env_files"] else {}, with_texts(given))
