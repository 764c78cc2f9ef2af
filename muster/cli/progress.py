"""Sessions on their way: a line for each change, as it happens."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import TypeVar

import click

from muster.cli.context import warn_if_unworked
from muster.core.model.session import FINAL, Result, SessionState
from muster.core.values.errors import MusterError
from muster.core.values.units import parse_duration
from muster.service.backend import Backend
from muster.service.sessions.views import SessionView, why_text

Command = TypeVar("Command", bound=Callable[..., object])


class WaitedTooLongError(MusterError):
    """The time to wait is over; the sessions go on."""


def wait_timeout_option(name: str, after: str) -> Callable[[Command], Command]:
    """Return an option of this name for the time after which a command stops waiting; `after` says what is so then."""
    text = f"Stop waiting after this time, such as 30m, or seconds; {after}."
    return click.option(name, type=_wait_time, metavar="TIME", help=text)


def _wait_time(text: str) -> float:
    """Return a time to wait in seconds: a number of them, or a span such as 30m. Raises BadParameter."""
    try:
        seconds = float(text)
    except ValueError:
        with suppress(ValueError):
            return parse_duration(text)
        seconds = -1.0
    if not 0 <= seconds < inf:
        raise click.BadParameter(f"{text!r} is no time to wait; write seconds, or a span such as 30m or 1h30m")
    return seconds


def follow(
    backend: Backend,
    submitted: Sequence[SessionView],
    reached: Callable[[SessionView], bool],
    *,
    timeout_s: float | None = None,
    quiet: bool = False,
) -> list[SessionView]:
    """Wait until all sessions have `reached`, and return them then. Progress goes to standard error.

    Raises WaitedTooLongError.
    """
    warn_if_unworked(backend)
    said: dict[str, str] = {}
    now = list(submitted)
    try:
        for now in backend.wait_for(submitted, reached, timeout_s):
            for session in now:
                line = f"{session.name}: {session.state}" + _reason(session)
                if not quiet and said.get(session.id) != line:
                    click.echo(line, err=True)
                said[session.id] = line
    except TimeoutError:
        names = ", ".join(f"{session.name} ({session.state})" for session in now if not reached(session))
        raise WaitedTooLongError(f"still waiting for {names}; `muster why SESSION` says why") from None
    return now


def exit_code_of(session: SessionView) -> int:
    """Return the exit code of a session's command, or 1 where the session failed for anything else."""
    if session.exit_code:
        return session.exit_code
    # Also with an exit code of 0, as of a container that ended before the command did.
    failed = session.result is Result.FAILURE or session.state in {SessionState.ERROR, SessionState.CANCELLED}
    return 1 if failed else 0


def has_ended(session: SessionView) -> bool:
    """Return whether the session has ended, and nothing of it is left on agents."""
    return session.state in FINAL


def runs(session: SessionView) -> bool:
    """Return whether the session runs."""
    return session.state is SessionState.RUNNING


def _reason(session: SessionView) -> str:
    text = why_text(session)
    return f" ({text})" if text and (session.wait or session.reason) else ""
