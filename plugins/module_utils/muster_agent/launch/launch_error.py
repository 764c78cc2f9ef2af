"""Why a session cannot be launched or released on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.api import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future


class LaunchError(Exception):
    """A session cannot be launched here: one line for its user."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class GivenUpError(Exception):
    """The error of a kernel whose gang failed for another kernel's reason."""


def first_failure(steps: Iterable[Future[None]]) -> BaseException | None:
    """Wait for all steps of a gang; return the reason why it failed, or None."""
    for failure in [step.exception() for step in steps]:
        if failure is not None and not isinstance(failure, GivenUpError):
            return as_launch_error(failure)
    return None


def as_launch_error(failure: BaseException) -> BaseException:
    """Return what the engine or this host refused as a LaunchError, and anything else as it is."""
    if isinstance(failure, EngineError):
        return LaunchError(str(failure), permanent=failure.status == 400)
    if isinstance(failure, OSError):
        return LaunchError(f"on this agent: {host_message(failure)}", permanent=False)
    return failure


def host_message(error: OSError) -> str:
    """Return what the host refused, and where, in one line."""
    words = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {words}" if error.filename else words
