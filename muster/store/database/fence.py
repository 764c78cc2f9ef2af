"""The fence between workers of the queue: only the newest one's thread writes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType

import sqlalchemy as sa

from muster.core.values.errors import QueueLockLostError
from muster.store.database.counters import kept_value_of
from muster.store.database.place import POSTGRESQL_PLACE
from muster.store.database.tables import counters

WORKER = "worker"
_KEPT_WITH_PLACE = (
    sa.select(counters.c.value, POSTGRESQL_PLACE).where(counters.c.name == WORKER).with_for_update(read=True)
)


@dataclass(frozen=True, slots=True)
class WorkerMark:
    """What tells a worker of the queue from others: its number, and the place of the database on which it began.

    `place` is empty where that is not known, and of a file, which stays the same as long as it is open.
    """

    number: int
    place: str


# By engine, since one thread may have several databases open. A thread that begins works for none.
_workers: ContextVar[Mapping[sa.Engine, WorkerMark]] = ContextVar("workers", default=MappingProxyType({}))


@contextmanager
def writing_as(engine: sa.Engine, worker: WorkerMark) -> Iterator[None]:
    """Let this thread's transactions on the engine be those of a worker."""
    before = _workers.set({**_workers.get(), engine: worker})
    try:
        yield
    finally:
        _workers.reset(before)


def check_fence(engine: sa.Engine, connection: sa.Connection) -> None:
    """Keep newer workers out until this transaction is over.

    Raises QueueLockLostError where one has begun, and where the database is another server's than when this one began:
    a replica that was promoted may lack what this worker has read.
    """
    worker = _workers.get().get(engine)
    if worker is None:
        return
    number, place = _present(connection, worker)
    if number != worker.number:
        raise QueueLockLostError("the lock on the queue was lost: another control node has worked the queue since")
    if place != worker.place:
        raise QueueLockLostError("the lock on the queue was lost: the database is on another server than before")


def _present(connection: sa.Connection, worker: WorkerMark) -> tuple[int, str]:
    """Return the newest worker's number, which nobody changes now, and the database's place."""
    if not worker.place:
        return kept_value_of(connection, WORKER), ""
    row = connection.execute(_KEPT_WITH_PLACE).one_or_none()
    return (row.value, row.place) if row else (0, worker.place)
