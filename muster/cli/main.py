"""`muster`: the commands, and what each error means for the exit code."""

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from muster.cli.command_client import collect_little_garbage, is_short, served_exit_code
from muster.core.values.errors import BadInputError, MusterError, SpecError
from muster.whole_files import unwritable

_COMMANDS: Mapping[str, tuple[str, str]] = {
    "submit": ("muster.cli.sessions.submit:submit", "Queue a session."),
    "ls": ("muster.cli.sessions.listing:ls", "List sessions; those that have ended with --all."),
    "show": ("muster.cli.sessions.listing:show", "Show a session: its kernels and its story."),
    "why": ("muster.cli.sessions.why:why", "Say why a session waits, or why it ended."),
    "queue": ("muster.cli.sessions.why:queue", "List the sessions that wait, in the order in which they are tried."),
    "simulate": (
        "muster.cli.simulate:simulate",
        "Try a workload on a cluster that need not exist; nothing is started.",
    ),
    "logs": ("muster.cli.sessions.access:logs", "Print what a kernel has written: main1, or SESSION:sub1."),
    "ssh": ("muster.cli.sessions.access:ssh", "Log in to a kernel by ssh: main1, or SESSION:sub1 through main1."),
    "ssh-config": (
        "muster.cli.sessions.ssh_config:ssh_config",
        "Write entries for your running sessions into your ssh configuration.",
    ),
    "exec": ("muster.cli.sessions.access:exec_", "Run a command in a kernel: `muster exec train:sub1 -- nvidia-smi`."),
    "run": (
        "muster.cli.sessions.access:run",
        "Run a command in every kernel of a session: `muster run train -- nvidia-smi`.",
    ),
    "open": (
        "muster.cli.sessions.open:open_",
        "Open an app of a session: make a tunnel to it, print its URL, and serve until Ctrl-C.",
    ),
    "wait": ("muster.cli.sessions.waiting:wait", "Wait until sessions have ended; by the name of an array all of it."),
    "terminate": ("muster.cli.sessions.ending:terminate", "End sessions; by the name of an array all of it."),
    "cancel": (
        "muster.cli.sessions.ending:cancel",
        "Cancel sessions that are still pending; of an array those that are.",
    ),
    "hold": ("muster.cli.sessions.ending:hold", "Keep pending sessions from starting until they are released."),
    "release": ("muster.cli.sessions.ending:release", "Let held sessions wait for their turn again."),
    "restart": (
        "muster.cli.sessions.day_two:restart",
        "Stop running sessions and launch them again: same ids, same place, fresh containers.",
    ),
    "extend": ("muster.cli.sessions.day_two:extend", "Give a running session more time."),
    "update": ("muster.cli.sessions.update:update", "Change what a session that waits asks for."),
    "rename": ("muster.cli.sessions.day_two:rename", "Give a session that has not ended another name."),
    "cp": ("muster.cli.sessions.copying:cp", "Copy a file or a directory into a kernel or out of it."),
    "folder": (
        "muster.cli.folder:folder_group",
        "Data folders that outlive sessions: yours, and those that others share with you.",
    ),
    "preset": (
        "muster.cli.preset:preset_group",
        "Specs to begin from: yours, and those that the site offers.",
    ),
    "secret": (
        "muster.cli.secret:secret_group",
        "Passwords, tokens and keys for my sessions: `muster submit --secret NAME`.",
    ),
    "top": (
        "muster.cli.sessions.top:top",
        "Show what running sessions use at this moment, kernel by kernel; all of them, unless some are named.",
    ),
    "report": (
        "muster.cli.report:report",
        "Add up what sessions were given and what they used, by user unless --by says otherwise.",
    ),
    "agents": ("muster.cli.agents.resources:agents", "List agents: what they have, and what is free."),
    "agent": ("muster.cli.agents.agent:agent_group", "Show an agent, take it out of service, put it back."),
    "reservation": (
        "muster.cli.agents.reservation:reservation_group",
        "Set agents aside for a time: for some users, or for nobody (maintenance).",
    ),
    "limit": (
        "muster.cli.limits:limit_group",
        "What users, projects and resource groups may have running and waiting.",
    ),
    "share-weight": (
        "muster.cli.limits:share_weight_group",
        "How much each user is entitled to in the orders drf and fair_share.",
    ),
    "token": (
        "muster.cli.token:token_group",
        "Tokens with which programs and other machines use the API of `muster web`.",
    ),
    "web": ("muster.cli.web:web", "Serve the pages and the API until SIGTERM."),
    "images": ("muster.cli.images:images", "List the image catalog, and how many agents hold each image."),
    "commit": ("muster.cli.sessions.commit:commit", "Make an image of a running kernel: main1, or SESSION:sub1."),
    "pass": ("muster.cli.operate:pass_", "Work the queue once: observe, schedule, launch, record."),
    "daemon": ("muster.cli.operate:daemon", "Work the queue until SIGTERM."),
    "playbook": (
        "muster.cli.playbook:playbook",
        "Run a playbook of Muster's by ansible-playbook; without PLAYBOOK, list them.",
    ),
    "doctor": ("muster.cli.doctor:doctor", "Check the installation, and say what to mend."),
    "backup": (
        "muster.cli.backup:backup",
        "Write the database and the keys of this control node into FILE, while everything runs.",
    ),
    "restore": ("muster.cli.backup:restore", "Put the backup FILE in the place of this control node's state."),
    "prepare": (
        "muster.cli.operate:prepare",
        "Compile the scheduler for this user, so that nobody has to wait for it later.",
    ),
    "completion": (
        "muster.cli.operate:completion",
        "Print the completion script for a shell: `source <(muster completion bash)`.",
    ),
    "version": ("muster.cli.operate:version", "Print Muster's version, and those of the software that it uses."),
}
"""Where each command is, and the first sentence of its help: lists of the commands import none of them."""

_WITHOUT_CONTROL_NODE = frozenset(
    {"submit", "ls", "show", "why", "queue", "logs", "terminate", "cancel", "hold", "release", "restart", "rename"}
    | {"exec", "run", "ssh", "cp", "open", "folder", "secret", "token", "top", "report", "agents", "images", "commit"}
    | {"extend", "update", "preset", "wait", "ssh-config", "completion", "version"}
)
"""Those that a server elsewhere can answer, or that ask nobody."""

_DISK_TROUBLES = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


class _Summaries(click.Group):
    """The commands with the first sentences of their help and nothing else."""

    def __init__(self) -> None:
        super().__init__(commands=[click.Command(name, help=text) for name, (_, text) in _COMMANDS.items()])

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)


def _unwrap_examples(command: click.Command) -> None:
    """Turn the mark before lines that are not to be wrapped into click's own: docstrings hold no control character."""
    command.help = command.help and command.help.replace("\\b\n", "\b\n")
    for child in getattr(command, "commands", {}).values():
        _unwrap_examples(child)


class _LazyGroup(click.Group):
    """A group that imports a command when it is used, so that a short one does not load the others' libraries."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        _unwrap_examples(command)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # As by `muster ls | head -1`: the reader has closed the pipe, which is no error. click would end with 1.
            sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
            raise click.exceptions.Exit(141) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _Summaries().format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [(name, text) for name, (_, text) in _COMMANDS.items() if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=text) for name, text in found]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

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
    help="Ask the `muster web` there, from any machine, or at a socket of this one (unix:/run/muster-api.sock);"
    " MUSTER_SERVER by default. Users who may not read the settings ask that socket anyway.",
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


def _not_written(error: OSError) -> str:
    """Return what could not be written, for want of room, and what to do."""
    if error.filename is None and _is_output_full():
        # A submit that is repeated queues its sessions twice.
        return (
            f"standard output cannot be written: {error.strerror}; free space where it goes, and see `muster ls`"
            " before you repeat a command: it may have done what it does"
        )
    import tempfile  # noqa: PLC0415 - needed here only

    return str(unwritable(Path(error.filename or tempfile.gettempdir()), error))


def _is_output_full() -> bool:
    try:
        # A buffer still holds what could not be written. Without one, only another try tells.
        sys.stdout.flush()
        if not sys.stdout.isatty():
            os.write(sys.stdout.fileno(), b"\n")
    except OSError:
        # Python tries again when it ends, and would end with an exit code of its own.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the end
        return True
    return False


def main() -> None:
    """Run a command: a short one in the daemon's command server where there is one, and any other here."""
    try:
        code = served_exit_code(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    if code is not None:
        sys.exit(code)
    if is_short(sys.argv[1:]):
        collect_little_garbage()
    run()


def run() -> None:
    """Run a command in this process, which ends with its exit code."""
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
    except OSError as error:
        if error.errno not in _DISK_TROUBLES:
            raise
        click.echo(f"muster: {_not_written(error)}", err=True)
        sys.exit(1)
    except SpecError as error:
        for item in error.errors:
            click.echo(f"muster: {item}", err=True)
        sys.exit(exit_code(error))
    except MusterError as error:
        for line in str(error).splitlines():
            click.echo(f"muster: {line}", err=True)
        sys.exit(exit_code(error))
