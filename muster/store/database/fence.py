"""The fence between workers of the queue: only the newest one's thread writes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

import sqlalchemy as sa

from muster.core.values.errors import QueueLockLostError
from muster.store.database.counters import kept_value_of

WORKER = "worker"
# By engine, since one thread may have several databases open. A thread that begins works for none.
_workers: ContextVar[Mapping[sa.Engine, int]] = ContextVar("workers", default=MappingProxyType({}))


@contextmanager
def writing_as(engine: sa.Engine, worker: int) -> Iterator[None]:
    """Let this thread's transactions on the engine be those of a worker."""
    before = _workers.set({**_workers.get(), engine: worker})
    try:
        yield
    finally:
        _workers.reset(before)


def check_fence(engine: sa.Engine, connection: sa.Connection) -> None:
    """Keep newer workers out until this transaction is over. Raises QueueLockLostError where one has begun."""
    worker = _workers.get().get(engine)
    if worker is not None and kept_value_of(connection, WORKER) != worker:
        raise QueueLockLostError("the lock on the queue was lost: another control node has worked the queue since")
