"""`folder`: create, ls, show, share, unshare, quota, rm."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from muster.cli.context import current_user, json_option, opened_backend
from muster.cli.output import or_dash, print_json, print_table
from muster.core.model.folders import few_names
from muster.core.model.projects import DEFAULT_PROJECT
from muster.core.values.errors import BadInputError
from muster.core.values.units import format_bytes, parse_bytes, timestamp
from muster.service.folders.owned import FolderQuery
from muster.service.folders.views import FolderView, MeasuredFolderView

_UNKNOWN = "n/a"


def complete_folder(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    try:
        with opened_backend() as backend:
            visible = backend.folders.search(FolderQuery()).items
        return [f.name for f in visible if f.owner == current_user() and f.name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a shell's completion has nowhere to show an error
        return []


def _name(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.argument("name", shell_complete=complete_folder)(function)


def _owner(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--owner", metavar="USER", help="Whose folder it is; you by default.")(function)


@click.group("folder")
def folder_group() -> None:
    """Data folders that outlive sessions: yours, and those that others share with you.

    Mount one with `muster submit -v NAME` or `-v OWNER/NAME`: it lies at /home/work/NAME in every kernel. A folder
    whose name starts with a dot is mounted in every session of its owner.
    """


@folder_group.command()
@click.argument("name")
@click.option("--quota", metavar="SIZE", help="The most that it may hold, such as 500G; enforced where agents can.")
@_owner
@json_option
def create(name: str, quota: str | None, owner: str | None, as_json: bool) -> None:
    """Make a folder of yours."""
    with opened_backend() as backend:
        folder = backend.folders.create(name, owner, None if quota is None else _bytes(quota, "--quota"))
    _say(folder, f"Created {name}", as_json=as_json)


@folder_group.command()
@_name
@click.argument("size")
@_owner
@json_option
def quota(name: str, size: str, owner: str | None, as_json: bool) -> None:
    """Change how much a folder may hold: SIZE such as 500G, or none."""
    most = None if size == "none" else _bytes(size, "SIZE")
    with opened_backend() as backend:
        folder = backend.folders.set_quota(name, owner, most)
    _say(folder, f"{name} may hold {'any amount' if most is None else format_bytes(most)}", as_json=as_json)


@folder_group.command("ls")
@click.option("--all", "-a", "everything", is_flag=True, help="Everybody's; for administrators.")
@click.option(
    "--project", "-P", default=DEFAULT_PROJECT, metavar="PROJECT", help="Also what is shared with this project."
)
@click.option("--no-size", "skips_size", is_flag=True, help="Do not ask the agents how much the folders hold.")
@click.option("--owner", metavar="USER", help="As this user sees it; you by default.")
@json_option
def ls_(everything: bool, project: str, skips_size: bool, owner: str | None, as_json: bool) -> None:
    """List folders: yours, and those shared with you."""
    with opened_backend() as backend:
        found = backend.folders.search(FolderQuery(everything, project, owner, sizes=not skips_size))
    if as_json:
        print_json(found.items)
    else:
        print_table(
            ("NAME", "OWNER", "STATE", "SIZE", "QUOTA", "USED BY", "SHARED WITH"), [_row(one) for one in found.items]
        )
    _complain(found.problems)


@folder_group.command()
@_name
@_owner
@json_option
def show(name: str, owner: str | None, as_json: bool) -> None:
    """Show a folder: what it holds, its shares, the sessions that mount it."""
    with opened_backend() as backend:
        folder = backend.folders.show(name, owner)
    if as_json:
        print_json(folder)
    else:
        facts = {
            "Folder": f"{folder.name}  ({folder.id})",
            "Owner": folder.owner,
            "State": _state(folder),
            "Path": f"{folder.path}, below folders_root on the agents",
            "Created": timestamp(folder.created_at),
            "Size": f"{_used(folder)}, {_UNKNOWN if folder.files is None else folder.files} files",
            "Quota": "none" if folder.quota_bytes is None else format_bytes(folder.quota_bytes),
            "Used by": few_names(folder.used_by) if folder.used_by else "-",
            "Shared": _shares(folder),
        }
        for title, value in facts.items():
            click.echo(f"{title + ':':<12}{value}")
    _complain(folder.problems, folder)


@folder_group.command()
@_name
@click.argument("whom")
@click.option("--ro/--rw", "read_only", default=True, help="Read-only, the default, or read-write.")
@_owner
@json_option
def share(name: str, whom: str, read_only: bool, owner: str | None, as_json: bool) -> None:
    """Let others mount a folder: WHOM is a user, or @PROJECT for all sessions of a project."""
    with opened_backend() as backend:
        folder = backend.folders.share(name, owner, whom, read_only=read_only)
    if as_json:
        print_json(folder)
    else:
        click.echo(f"{whom} may mount {folder.owner}/{name} {'read-only' if read_only else 'read-write'}")


@folder_group.command()
@_name
@click.argument("whom")
@_owner
@json_option
def unshare(name: str, whom: str, owner: str | None, as_json: bool) -> None:
    """Take a share back; sessions that were submitted with it keep it until they end."""
    with opened_backend() as backend:
        unshared = backend.folders.unshare(name, owner, whom)
    if as_json:
        print_json(unshared)
        return
    click.echo(f"{name} is no longer shared with {whom}")
    if unshared.still_mounted_by:
        names = few_names(unshared.still_mounted_by)
        click.echo(f"sessions of others that mount it until they end: {names}", err=True)


@folder_group.command()
@_name
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask for confirmation.")
@_owner
@json_option
@click.pass_context
def rm(ctx: click.Context, name: str, is_sure: bool, owner: str | None, as_json: bool) -> None:
    """Remove a folder and all that is in it, on all agents. Refused while a session mounts it.

    Where an agent does not answer, its part stays there, and exit code 1 says so: say it again when the agent is back.
    """
    with opened_backend() as backend:
        if not is_sure:
            backend.folders.show(name, owner, sizes=False)
            _ask(name)
        on_removed = (lambda _agent: None) if as_json else (lambda agent: click.echo(f"removed from {agent}", err=True))
        removed = backend.folders.remove(name, owner, on_removed)
    if as_json:
        print_json(removed)
    elif removed.removed:
        click.echo(f"Removed {name}")
    _complain(removed.problems)
    if not removed.removed:
        click.echo(
            f"{name} is still on {', '.join(removed.left_on)}; nobody can mount it."
            f" Say `muster folder rm {name}` again when that answers",
            err=True,
        )
        ctx.exit(1)


def _ask(name: str) -> None:
    if not sys.stdin.isatty():
        raise BadInputError("--yes: there is no terminal to confirm on that all its data is removed; add --yes")
    click.confirm(f"Remove {name} and all that is in it?", abort=True)


def _bytes(size: str, where: str) -> int:
    try:
        return parse_bytes(size)
    except ValueError as error:
        raise BadInputError(f"{where}: {error}; write bytes such as 512M, 4G or 1.5T") from None


def _say(folder: MeasuredFolderView, line: str, *, as_json: bool) -> None:
    if as_json:
        print_json(folder)
    else:
        click.echo(line)
    _complain(folder.problems, folder)


def _complain(problems: Mapping[str, str], folder: FolderView | None = None) -> None:
    for agent_id, problem in sorted(problems.items()):
        click.echo(f"agent {agent_id}: {problem}", err=True)
    for agent_id, problem in sorted((folder.quota_not_enforced if folder else {}).items()):
        click.echo(f"agent {agent_id}: the quota is {problem}", err=True)


def _row(folder: FolderView) -> tuple[object, ...]:
    return (
        folder.name,
        folder.owner,
        _state(folder),
        _used(folder),
        f"{or_dash(folder.quota_bytes, format_bytes)}" + (" (not enforced)" if folder.quota_not_enforced else ""),
        few_names(folder.used_by) if folder.used_by else "-",
        _shares(folder),
    )


def _state(folder: FolderView) -> str:
    return f"removing ({','.join(folder.left_on)})" if folder.state == "removing" else folder.state


def _used(folder: FolderView) -> str:
    return _UNKNOWN if folder.used_bytes is None else format_bytes(folder.used_bytes)


def _shares(folder: FolderView) -> str:
    return ",".join(f"{s.grantee}:{'ro' if s.read_only else 'rw'}" for s in folder.shared_with) or "-"
