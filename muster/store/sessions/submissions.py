"""Which submits were done already, by the key that their caller gave them."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from muster.core.values.errors import MusterError
from muster.store.database.connection import reading
from muster.store.database.tables import submissions

KEPT_S = 86400.0


@dataclass(frozen=True, slots=True)
class Submission:
    """A submit with a key. `request_hash` tells whether a later one is the same. `at`: seconds since the epoch."""

    caller: str
    key: str
    request_hash: str
    at: float


class SubmittedBeforeError(MusterError):
    """A submit with that key was done before. `same` says whether it was the same request."""

    def __init__(self, session_ids: Sequence[str], *, same: bool) -> None:
        super().__init__()
        self.session_ids = tuple(session_ids)
        self.same = same


class Submissions:
    """A table of submits with a key, kept for a day."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def check(self, submission: Submission) -> None:
        """Raises SubmittedBeforeError when its key was used already."""
        with reading(self._engine) as connection:
            _check(connection, submission)


def claim(connection: sa.Connection, submission: Submission, session_ids: Sequence[str]) -> None:
    """Takes the key for these sessions, in the transaction that adds them. Raises SubmittedBeforeError.

    The caller holds a lock that lets one writer in at a time.
    """
    connection.execute(sa.delete(submissions).where(submissions.c.at < submission.at - KEPT_S))
    _check(connection, submission)
    row = {name: getattr(submission, name) for name in Submission.__dataclass_fields__}
    connection.execute(sa.insert(submissions).values({**row, "session_ids": list(session_ids)}))


def _check(connection: sa.Connection, submission: Submission) -> None:
    this = (submissions.c.caller == submission.caller, submissions.c.key == submission.key)
    recent = submissions.c.at >= submission.at - KEPT_S
    earlier = connection.execute(sa.select(submissions).where(*this, recent)).mappings().first()
    if earlier is not None:
        raise SubmittedBeforeError(earlier["session_ids"], same=earlier["request_hash"] == submission.request_hash)
