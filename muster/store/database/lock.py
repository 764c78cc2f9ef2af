"""One worker of the queue at a time."""

import fcntl
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import sqlalchemy as sa

from muster.core.values.errors import PassInProgressError, QueueLockLostError
from muster.store.database import postgresql
from muster.store.database.connection import new_engine, one_line, unavailable

if TYPE_CHECKING:
    from typing import LiteralString

log = logging.getLogger("muster.store")
_POLL_S = 0.5
# One database is one cluster, so one constant is enough.
_QUEUE = 0x6D75_7374_7175_6575
_BUSY = "another pass is at work on this queue; it will see what is new"


class QueueLock(Protocol):
    """The right to work the queue, while it lasts."""

    def check(self) -> None:
        """Raises QueueLockLostError when another may hold the lock by now."""


@contextmanager
def exclusive(path: Path, *, wait: bool) -> Iterator[None]:
    """Holds a lock that ends with the process, however it ends.

    Raises PassInProgressError when another holds it and `wait` is false.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise PassInProgressError(_BUSY) from None
        yield


@contextmanager
def shared(path: Path) -> Iterator[None]:
    """Keep others from holding the lock as `exclusive`; wait while one does. It ends with the process."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextmanager
def queue_lock(
    url: str, directory: Path, *, wait: bool, between_tries: Callable[[], None] = lambda: None
) -> Iterator[QueueLock]:
    """Hold the lock on the queue of the database: a file in `directory` with SQLite, on the server with PostgreSQL.

    It ends with the process, and with PostgreSQL also with the connection. Raises PassInProgressError when another
    holds it and `wait` is false, and StoreUnavailableError when the database does not answer; one that waits already
    goes on waiting then, until `between_tries` raises.
    """
    engine = new_engine(url)
    if engine.dialect.name == "sqlite":
        with ExitStack() as stack:
            for _ in _tries(between_tries):
                try:
                    stack.enter_context(exclusive(directory / "queue.lock", wait=False))
                    break
                except PassInProgressError:
                    if not wait:
                        raise
            yield _FileLock()
        return
    lock = _AdvisoryLock(engine)
    try:
        for _ in _tries(between_tries):
            if lock.acquired(wait=wait):
                break
        try:
            yield lock
        finally:
            lock.release()
    finally:
        lock.close()


def _tries(between: Callable[[], None]) -> Iterator[None]:
    """Yield for each try, with a pause after it."""
    while True:
        yield
        between()
        time.sleep(_POLL_S)


class _FileLock:
    def check(self) -> None:
        """Do nothing: the operating system keeps the lock as long as the process lives."""


class _AdvisoryLock:
    """A lock of a PostgreSQL connection, which the server releases when the connection ends."""

    def __init__(self, engine: sa.Engine) -> None:
        import psycopg  # noqa: PLC0415 - it is there where PostgreSQL is used

        self._engine = engine
        self._error = psycopg.Error
        try:
            self._connection = postgresql.connect(engine)
        except psycopg.Error as error:
            raise unavailable(engine, error) from error
        self._backend: object = None
        self._failing = False

    def acquired(self, *, wait: bool) -> bool:
        """Return whether this try got the lock. Raises what `queue_lock` does."""
        try:
            if self._try():
                return True
        except self._error as error:
            if not wait:
                raise unavailable(self._engine, error) from error
            # One who waits outlives the server's restarts.
            if not self._failing:
                log.warning("the database failed while waiting for the lock on the queue: %s", one_line(error))
            self._failing = True
            self.close()
        else:
            if not wait:
                raise PassInProgressError(_BUSY)
        return False

    def check(self) -> None:
        try:
            backend = self._ask("SELECT pg_backend_pid()")
        except self._error as error:
            raise QueueLockLostError(
                f"the lock on the queue is lost with its connection to the database: {one_line(error)}"
            ) from None
        if backend != self._backend:
            raise QueueLockLostError(
                "the lock on the queue is lost: a connection pooler changed the connection to the database;"
                " let `database` name the server itself"
            )

    def release(self) -> None:
        """Give the lock back at once: the server ends a connection only some time after it was closed."""
        with suppress(self._error):
            self._ask("SELECT pg_advisory_unlock(%s)", _QUEUE)

    def close(self) -> None:
        with suppress(self._error):
            self._connection.close()

    def _try(self) -> bool:
        if self._connection.closed:
            self._connection = postgresql.connect(self._engine)
        self._backend = self._ask("SELECT pg_backend_pid()")
        held = bool(self._ask("SELECT pg_try_advisory_lock(%s)", _QUEUE))
        if self._failing:
            log.info("the database answers again")
            self._failing = False
        return held

    def _ask(self, statement: "LiteralString", *values: object) -> object:
        row = self._connection.execute(statement, values).fetchone()
        return row[0] if row else None
