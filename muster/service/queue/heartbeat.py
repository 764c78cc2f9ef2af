"""The heartbeat of what works the queue: written by the loop, read by everything that shows the queue's state."""

import os
import socket
import time
from collections.abc import Callable

from muster.core.model.heartbeat import Heartbeat, Unworked, Worker, unworked
from muster.settings import Settings
from muster.store.store import Store

_WRITTEN_EVERY_S = 5.0


class Pulse:
    """A writer of heartbeats: after a decision, every few seconds at most, so that a busy queue is not slowed down."""

    def __init__(self, store: Store, worker: Worker, clock: Callable[[], float]) -> None:
        self._store = store
        self._worker = worker
        self._clock = clock
        self._write_at = 0.0

    def beat(self) -> None:
        """Raises StoreUnavailableError."""
        if time.monotonic() >= self._write_at:
            self._store.heartbeats.save(Heartbeat(self._clock(), self._worker, socket.gethostname(), os.getpid()))
            self._write_at = time.monotonic() + _WRITTEN_EVERY_S


def unworked_queue(store: Store, settings: Settings, *, for_new: bool = False) -> Unworked | None:
    """Return for how long nobody has worked the queue, if that is too long and a session waits or runs.

    With `for_new`, a session that might be submitted counts as waiting. Raises StoreUnavailableError.
    """
    last = store.heartbeats.last()
    if last is not None and unworked(last, None, time.time(), settings.unworked_limit_s) is None:
        return None
    oldest = store.heartbeats.oldest_session()
    if oldest is None and not for_new:
        return None
    return unworked(last, oldest, time.time(), settings.unworked_limit_s)
