"""Those who are told of changes as they happen, by server-sent events."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, suppress

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from muster.core.values.errors import MusterError
from muster.service.local_backend import LocalBackend
from muster.service.sessions.live import LiveChange, LiveChanges
from muster.web.problems import TooManyError

HEARTBEAT_S = 15.0
MOST_LISTENERS = 1000
_WAITING = 1000


class Listener:
    """What one reader is told: changes of the sessions that he may see."""

    def __init__(self, asked: LocalBackend, live: LiveChanges) -> None:
        self._asked = asked
        self._live = live
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Queue[Sequence[LiveChange] | None] = asyncio.Queue(_WAITING)
        self._hear = self._heard  # one object, so that what is added can be removed

    def begin(self) -> int:
        return self._live.add(self._hear)

    def end(self) -> None:
        self._live.remove(self._hear)

    def stop(self) -> None:
        """From any thread, and from signal handlers: its stream ends."""
        self._loop.call_soon_threadsafe(self._put_end)

    def missed(self, number: int, until: int) -> list[LiveChange]:
        return self._mine(self._live.after(number, until))

    async def get(self, timeout_s: float) -> Sequence[LiveChange] | None:
        """None where this reader was too slow, or the server ends. Raises TimeoutError."""
        return await asyncio.wait_for(self._told.get(), timeout_s)

    def _heard(self, changes: Sequence[LiveChange]) -> None:
        mine = self._mine(changes)
        if mine:
            self._loop.call_soon_threadsafe(self._put, mine)

    def _mine(self, changes: Sequence[LiveChange]) -> list[LiveChange]:
        return [change for change in changes if self._asked.sees(change.session)]

    def _put(self, changes: Sequence[LiveChange]) -> None:
        if self._told.qsize() >= _WAITING - 1:
            self._put_end()
        else:
            self._told.put_nowait(changes)

    def _put_end(self) -> None:
        self.end()
        if not self._told.full():
            self._told.put_nowait(None)


async def listen(
    request: Request,
    asked: LocalBackend,
    event: Callable[[LiveChange], str],
    last_event_id: int | None,
    may_go_on: Callable[[], bool],
) -> Response:
    """A stream of `event` of each change, first of those after `last_event_id`; a comment every 15 s shows that the
    server is there, and `may_go_on` is asked then. A reader that is too slow is cut off: it comes back with its
    Last-Event-ID. Raises TooManyError.
    """
    listeners: set[Listener] = request.app.state.listeners
    if len(listeners) >= MOST_LISTENERS:
        raise TooManyError(f"{MOST_LISTENERS} listen already; try again later")
    listener = Listener(asked, request.app.state.live)
    with ExitStack() as stack:
        listeners.add(listener)
        stack.callback(listeners.discard, listener)
        stack.callback(listener.end)
        now = await run_in_threadpool(listener.begin)
        missed = [] if last_event_id is None else await run_in_threadpool(listener.missed, last_event_id, now)
        # From here on the answer ends it.
        ending = stack.pop_all()
    first = f": since {now}\n\n" + "".join(map(event, missed))
    return _Stream(_told(listener, event, first, may_go_on), ending)


class _Stream(StreamingResponse):
    """Ends what belongs to it also where its reader has gone before the first byte."""

    def __init__(self, told: AsyncIterator[str], ending: ExitStack) -> None:
        super().__init__(told, media_type="text/event-stream")
        self._ending = ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._ending:
            await super().__call__(scope, receive, send)


async def _told(
    listener: Listener, event: Callable[[LiveChange], str], first: str, may_go_on: Callable[[], bool]
) -> AsyncIterator[str]:
    # Where its token or the database cannot be asked after, its reader is cut off, and comes back.
    with suppress(MusterError):
        yield first
        asked_at = time.monotonic()
        while True:
            until_asked_s = asked_at + HEARTBEAT_S - time.monotonic()
            if until_asked_s <= 0:
                # Also of a stream that is never silent.
                if not await run_in_threadpool(may_go_on):
                    return
                asked_at = time.monotonic()
                yield ": here\n\n"
                continue
            try:
                changes = await listener.get(until_asked_s)
            except TimeoutError:
                continue
            if changes is None:
                return
            yield "".join(map(event, changes))
