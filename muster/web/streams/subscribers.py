"""Streams of changes as they happen, by server-sent events."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, suppress

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool

from muster.core.values.errors import MusterError
from muster.service.local_backend import LocalBackend
from muster.service.sessions.live import LiveChange, LiveChanges
from muster.web.caller import service_of
from muster.web.streams.caps import check_cap
from muster.web.streams.stream_response import StreamResponse

HEARTBEAT_S = 15.0
MAX_SUBSCRIBERS = 1000
_MAX_QUEUED = 1000


class Subscriber:
    """The reader of an event stream: it receives the changes of the sessions that its user may see."""

    def __init__(self, backend: LocalBackend, live: LiveChanges) -> None:
        self.user = backend.user
        self._token = backend.token
        self._live = live
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Sequence[LiveChange] | None] = asyncio.Queue(_MAX_QUEUED)
        self._on_changes = self._receive  # one bound method, so that remove() finds the one that add() got

    def begin(self) -> int:
        """Receive changes from now on, and return the number of the last one before."""
        return self._live.add(self._on_changes, self._token)

    def end(self) -> None:
        self._live.remove(self._on_changes)

    def stop(self) -> None:
        """End the stream; may be called from any thread and from signal handlers."""
        self._loop.call_soon_threadsafe(self._put_end)

    def missed(self, number: int, until: int) -> Sequence[LiveChange]:
        """Return the changes after one number, up to another."""
        return self._live.after(number, until, self._token)

    async def get(self, timeout_s: float) -> Sequence[LiveChange] | None:
        """Return the next changes; None if this reader was too slow or the server stops. Raises TimeoutError."""
        return await asyncio.wait_for(self._queue.get(), timeout_s)

    def _receive(self, changes: Sequence[LiveChange]) -> None:
        self._loop.call_soon_threadsafe(self._put, changes)

    def _put(self, changes: Sequence[LiveChange]) -> None:
        if self._queue.qsize() >= _MAX_QUEUED - 1:
            self._put_end()
        else:
            self._queue.put_nowait(changes)

    def _put_end(self) -> None:
        self.end()
        if not self._queue.full():
            self._queue.put_nowait(None)


async def event_stream(
    request: Request,
    backend: LocalBackend,
    event: Callable[[LiveChange], str],
    last_event_id: int | None,
    may_continue: Callable[[], bool],
) -> Response:
    """Return a stream of the `event` of each change, beginning with those after `last_event_id`.

    Every 15 s a comment shows that the server is there, and the stream ends unless `may_continue`. A reader that is too
    slow is cut off, and may reconnect with its Last-Event-ID. Raises TooManyError.
    """
    subscribers: set[Subscriber] = request.app.state.subscribers
    most_of_one = service_of(request).settings.web.event_streams
    check_cap(subscribers, backend.user, most=MAX_SUBSCRIBERS, most_of_one=most_of_one, what="event streams")
    subscriber = Subscriber(backend, request.app.state.live)
    with ExitStack() as stack:
        subscribers.add(subscriber)
        stack.callback(subscribers.discard, subscriber)
        stack.callback(subscriber.end)
        now = await run_in_threadpool(subscriber.begin)
        missed = () if last_event_id is None else await run_in_threadpool(subscriber.missed, last_event_id, now)
        # From here on the response closes it.
        closing = stack.pop_all()
    first = f": since {now}\n\n" + "".join(map(event, missed))
    return StreamResponse(_events(subscriber, event, first, may_continue), closing, "text/event-stream")


async def _events(
    subscriber: Subscriber, event: Callable[[LiveChange], str], first: str, may_continue: Callable[[], bool]
) -> AsyncIterator[str]:
    # If the token or the database cannot be checked, the reader is cut off, and may reconnect.
    with suppress(MusterError):
        yield first
        checked_at = time.monotonic()
        while True:
            until_check_s = checked_at + HEARTBEAT_S - time.monotonic()
            if until_check_s <= 0:
                # By the clock, so that a stream that is never silent is checked too.
                if not await run_in_threadpool(may_continue):
                    return
                checked_at = time.monotonic()
                yield ": here\n\n"
                continue
            try:
                changes = await subscriber.get(until_check_s)
            except TimeoutError:
                continue
            if changes is None:
                return
            yield "".join(map(event, changes))
