"""`muster`: the commands, and what each error means for the exit code."""

import difflib
import errno
import importlib
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from muster.core.values.errors import BadInputError, MusterError, SpecError
from muster.whole_files import unwritable

_COMMANDS: Mapping[str, str] = {
    "submit": "muster.cli.sessions.submit:submit",
    "ls": "muster.cli.sessions.listing:ls",
    "show": "muster.cli.sessions.listing:show",
    "why": "muster.cli.sessions.why:why",
    "queue": "muster.cli.sessions.why:queue",
    "simulate": "muster.cli.simulate:simulate",
    "logs": "muster.cli.sessions.access:logs",
    "ssh": "muster.cli.sessions.access:ssh",
    "exec": "muster.cli.sessions.access:exec_",
    "open": "muster.cli.sessions.open:open_",
    "terminate": "muster.cli.sessions.ending:terminate",
    "cancel": "muster.cli.sessions.ending:cancel",
    "hold": "muster.cli.sessions.ending:hold",
    "release": "muster.cli.sessions.ending:release",
    "restart": "muster.cli.sessions.day_two:restart",
    "rename": "muster.cli.sessions.day_two:rename",
    "cp": "muster.cli.sessions.copying:cp",
    "folder": "muster.cli.folder:folder_group",
    "secret": "muster.cli.secret:secret_group",
    "top": "muster.cli.sessions.top:top",
    "report": "muster.cli.report:report",
    "agents": "muster.cli.agents.resources:agents",
    "agent": "muster.cli.agents.agent:agent_group",
    "reservation": "muster.cli.agents.reservation:reservation_group",
    "token": "muster.cli.token:token_group",
    "web": "muster.cli.web:web",
    "images": "muster.cli.images:images",
    "commit": "muster.cli.sessions.commit:commit",
    "pass": "muster.cli.operate:pass_",
    "daemon": "muster.cli.operate:daemon",
    "doctor": "muster.cli.doctor:doctor",
    "backup": "muster.cli.backup:backup",
    "restore": "muster.cli.backup:restore",
    "prepare": "muster.cli.operate:prepare",
    "completion": "muster.cli.operate:completion",
    "version": "muster.cli.operate:version",
}


_WITHOUT_CONTROL_NODE = frozenset(
    {"submit", "ls", "show", "why", "queue", "logs", "terminate", "cancel", "hold", "release", "restart", "rename"}
    | {"folder", "secret", "top", "report", "agents", "images", "commit", "completion", "version"}
)
"""Those that a server elsewhere can answer, or that ask nobody."""

_DISK_TROUBLES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class _LazyGroup(click.Group):
    """Import a command when it is used, so that a short command does not load the others' libraries."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        near = difflib.get_close_matches(name, _COMMANDS, n=1)
        if name not in _COMMANDS and not name.startswith("-") and near:
            raise click.UsageError(f"No such command {name!r}. Did you mean {near[0]!r}?", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--server",
    metavar="URL",
    envvar="MUSTER_SERVER",
    help="Ask the `muster web` there, from any machine; MUSTER_SERVER by default.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File that holds the token for --server; MUSTER_TOKEN by default.",
)
@click.pass_context
def cli(ctx: click.Context, server: str | None, token_file: Path | None) -> None:
    """Cluster sessions on plain Docker hosts.

    SESSION is a session's name, its id, or the start of its id. Settings are read from /etc/muster/muster.yml, or
    from the file that MUSTER_CONFIG names.
    """
    del token_file
    if server is not None and ctx.invoked_subcommand not in _WITHOUT_CONTROL_NODE:
        raise BadInputError(
            f"--server: muster {ctx.invoked_subcommand} needs the control node; run it there, without --server"
        )


def exit_code(error: MusterError) -> int:
    return 2 if isinstance(error, BadInputError) else 1


def _check_encoding(arguments: Sequence[str]) -> None:
    """Raises BadInputError for bytes that are no text: no name, path or command of ours holds them."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise BadInputError(f"argument {argument!r} is not UTF-8") from None


def main() -> None:
    try:
        _check_encoding(sys.argv[1:])
        # Without click's own error handling, an exit code comes back as the result.
        code = cli.main(prog_name="muster", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # As by `muster ls | head -1`: the reader has closed the pipe, which is no error.
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno not in _DISK_TROUBLES:
            raise
        click.echo(f"muster: {unwritable(Path(error.filename or tempfile.gettempdir()), error)}", err=True)
        sys.exit(1)
    except SpecError as error:
        for item in error.errors:
            click.echo(f"muster: {item}", err=True)
        sys.exit(exit_code(error))
    except MusterError as error:
        for line in str(error).splitlines():
            click.echo(f"muster: {line}", err=True)
        sys.exit(exit_code(error))
