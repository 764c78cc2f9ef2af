"""News from other processes by PostgreSQL's LISTEN. They only wake the reader, which reads the facts again."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from muster.store.database import postgresql
from muster.store.database.connection import one_line, unavailable

if TYPE_CHECKING:
    import psycopg

log = logging.getLogger("muster.store")
CHANNEL = "muster_queue"
MISSED = "queue"
_LOOK_S = 0.5
_RECONNECT_S = 1.0


@contextmanager
def listening(engine: sa.Engine, on_message: Callable[[str], None]) -> Iterator[None]:
    """Call `on_message`, in a thread of its own, with every message sent from now on.

    Call it with "queue" as well each second of an outage and after it, so that who waits for news learns of the outage.
    Raises StoreUnavailableError when the database cannot be reached at the start.
    """
    listener = _Listener(engine, on_message)
    listener.start()
    try:
        yield
    finally:
        listener.stop()


class _Listener(threading.Thread):
    def __init__(self, engine: sa.Engine, on_message: Callable[[str], None]) -> None:
        import psycopg  # noqa: PLC0415 - it is there where PostgreSQL is used

        super().__init__(name="listen", daemon=True)
        self._engine = engine
        self._on_message = on_message
        self._stopped = threading.Event()
        self._error = psycopg.Error
        try:
            self._connection = self._connected()
        except psycopg.Error as error:
            raise unavailable(engine, error) from error

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._receive()
            except self._error as error:
                log.warning("news from the database stopped: %s", one_line(error))
                self._reconnect()
        self._connection.close()

    def _receive(self) -> None:
        # In short turns: a connection must not be closed by another thread than the one that waits on it.
        while not self._stopped.is_set():
            for notification in self._connection.notifies(timeout=_LOOK_S):
                self._on_message(notification.payload)

    def _reconnect(self) -> None:
        self._connection.close()
        while not self._stopped.wait(_RECONNECT_S):
            try:
                self._connection = self._connected()
            except self._error:
                self._on_message(MISSED)
                continue
            log.info("news from the database come again")
            self._on_message(MISSED)
            return

    def _connected(self) -> "psycopg.Connection[tuple[Any, ...]]":
        connection = postgresql.connect(self._engine)
        try:
            connection.execute(f"LISTEN {CHANNEL}")
        except self._error:
            connection.close()
            raise
        return connection
