"""Every error that Muster raises on purpose. The command line maps classes to exit codes in one place."""

from collections.abc import Sequence
from dataclasses import dataclass


class MusterError(Exception):
    """Something went wrong."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class BadInputError(MusterError):
    """The input is not valid."""


class NotFoundError(BadInputError):
    """There is no such thing."""


class AmbiguousNameError(BadInputError):
    """The name fits several things."""


class NameTakenError(BadInputError):
    """A session of that name exists."""


class NotPossibleInStateError(MusterError):
    """The session is in no state for that."""


class SettingsError(BadInputError):
    """The settings file is not valid."""


class PassInProgressError(MusterError):
    """Another pass is at work on this queue."""


class QueueLockLostError(MusterError):
    """The lock on the queue is lost: its connection is gone, or another has worked the queue meanwhile."""


class StoreUnavailableError(MusterError):
    """The database does not answer."""


class DatabaseAwayError(StoreUnavailableError):
    """The database cannot be opened now, and may be later: it is away, or its disk is full."""


class OutcomeUnknownError(StoreUnavailableError):
    """The database was lost before it said whether a change was made."""


class UnwritableError(MusterError):
    """A file of the control node's own state cannot be written: its disk may be full."""


class ImageError(MusterError):
    """An image cannot be brought to an agent. `permanent` says that trying again cannot help."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class AgentUnreachableError(MusterError):
    """The agent does not answer."""


class AnsibleFailedError(MusterError):
    """Ansible could not do its work."""


class IllegalTransitionError(MusterError):
    """The session's state does not allow this change."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """An error in one field: what is wrong, and what to write instead."""

    field: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}; {self.remedy}"


class SpecError(BadInputError):
    """The session spec is not valid. Holds every error of the spec, not only the first."""

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))
