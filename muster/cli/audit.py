"""What a command changed, for the audit log: who, by which command, which sessions, how it ended."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from muster.core.values.errors import BadInputError, MusterError

if TYPE_CHECKING:  # the settings' and the views' library loads slowly
    from muster.core.model.session import Session
    from muster.service.sessions.views import SessionView
    from muster.service.view import View
    from muster.settings import Settings

_CHANGES = frozenset(
    {"submit", "terminate", "cancel", "hold", "release", "restart", "rename", "extend", "backup", "restore", "pass"}
    | {"update", "ssh", "ssh-config", "exec", "run", "cp", "open", "commit"}
    | {"images rm", "images sync", "secret set", "secret rm", "preset set", "preset rm"}
    | {f"folder {action}" for action in ("create", "share", "unshare", "quota", "rm")}
    | {"agent drain", "agent resume", "reservation create", "reservation rm", "token create", "token revoke"}
    | {f"{what} {action}" for what in ("limit", "share-weight") for action in ("set", "unset")}
)
"""Commands that change something, or reach into a session."""
# A command line may hold a password.
_NOT_WRITTEN = frozenset({"command"})
_SESSIONS, _NOTHING = "muster.changed_sessions", "muster.changes_nothing"


@contextmanager
def audited(settings: "Settings", user: str) -> Iterator[None]:
    """Write a record for the present command if it is one that changes something, with its exit code.

    `note_sessions` writes it earlier, so that a command that waits for long is recorded when it acts.
    """
    context = click.get_current_context(silent=True)
    if context is None or context.resilient_parsing or _name(context) not in _CHANGES:
        yield
        return
    record = _Record(settings, user, context)
    context.meta[_SESSIONS] = record
    status = 1
    try:
        yield
        status = 0
    except click.exceptions.Exit as ended:
        status = ended.exit_code
        raise
    except MusterError as error:
        status = 2 if isinstance(error, BadInputError) else 1
        raise
    finally:
        if not context.meta.get(_NOTHING):
            record.write(status)


def note_sessions(sessions: "Iterable[Session | SessionView]") -> None:
    """Record the sessions that the present command has changed, at once."""
    note_session_ids([session.id for session in sessions])


def note_session_ids(ids: Iterable[str]) -> None:
    """Record the sessions of these ids, as `note_sessions`."""
    record = click.get_current_context().meta.get(_SESSIONS)
    if record is not None:
        record.write(0, ids)


def note_content(*, before: "View | None" = None, after: "View | None" = None) -> None:
    """Record what was there before the present command's change, and what is there since."""
    record = click.get_current_context().meta.get(_SESSIONS)
    if record is not None:
        views = (("before", before), ("after", after))
        record.content = {name: view.as_json() for name, view in views if view is not None}


def note_no_change() -> None:
    """Note that the present command changes nothing, so that the audit log gets no record of it."""
    click.get_current_context().meta[_NOTHING] = True


class _Record:
    """A record that is written once."""

    def __init__(self, settings: "Settings", user: str, context: click.Context) -> None:
        from muster.service.audit import AuditLog  # noqa: PLC0415 - needed by commands that change something

        self._log = AuditLog(settings)
        self._user = user
        self._context = context
        self._is_written = False
        self.content: Mapping[str, object] = {}

    def write(self, status: int, sessions: Iterable[str] = ()) -> None:
        if self._is_written:
            return
        self._is_written = True
        arguments = {
            parameter.name: _text(self._context.params[parameter.name])
            for parameter in self._context.command.params
            if isinstance(parameter, click.Argument)
            and parameter.name not in _NOT_WRITTEN
            and self._context.params.get(parameter.name)
        }
        self._log.write(
            {
                "user": self._user,
                "token": None,
                "source": "command line",
                "from": f"uid {os.getuid()}",
                "method": "COMMAND",
                "path": f"muster {_name(self._context)}",
                "arguments": arguments,
                "sessions": [*sessions],
                "owner": self._context.params.get("owner"),
                "status": status,
                **self.content,
            }
        )


def _name(context: click.Context) -> str:
    return context.command_path.partition(" ")[2]


def _text(value: object) -> str | list[str]:
    return [str(item) for item in value] if isinstance(value, tuple) else str(value)
