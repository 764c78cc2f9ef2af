"""Logs of kernels as responses, which end when the reader leaves or may no longer read."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any

from fastapi import Request
from fastapi.concurrency import run_in_threadpool

from muster.core.values.errors import MusterError
from muster.service.local_backend import LocalBackend
from muster.service.reach.logs import LogRequest
from muster.web.caller import service_of
from muster.web.streams.caps import check_cap
from muster.web.streams.stream_response import StreamResponse

MAX_STREAMS = 200
CHECK_S = 15.0
_MAX_QUEUED = 64


class LogStream:
    """A log on its way from the engine to one reader.

    A thread of its own reads it: a log may be silent for days, and the application has few threads.
    """

    def __init__(self, read: Callable[["LogStream"], None], user: str) -> None:
        self.user = user
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_MAX_QUEUED)
        self._source: Any = None
        self._is_closed = threading.Event()
        threading.Thread(target=self._run, args=(read,), name="log", daemon=True).start()

    def set_source(self, source: Iterable[bytes]) -> None:
        """Note what the thread reads from, so that it can be closed, and begin the response. Called by the thread."""
        self._source = source
        self.put(b"")

    def put(self, piece: bytes | Exception | None) -> bool:
        """Pass a piece on when there is room; return False once the stream is closed. Called by the thread."""
        if self._is_closed.is_set():
            return False
        try:
            putting = asyncio.run_coroutine_threadsafe(self._pieces.put(piece), self._loop)
            while not self._is_closed.is_set():
                with suppress(TimeoutError):
                    putting.result(1.0)
                    return True
            putting.cancel()
        except RuntimeError:
            pass  # the event loop is closed: the server stops
        return False

    async def get(self) -> bytes | Exception | None:
        return await self._pieces.get()

    def stop(self) -> None:
        """End the response; may be called from any thread and from signal handlers."""
        self._loop.call_soon_threadsafe(self._end)

    def close(self) -> None:
        self._is_closed.set()
        if hasattr(self._source, "close"):
            # A generator cannot be closed while the thread is in it. The thread then ends with the next piece.
            with suppress(ValueError, OSError):
                self._source.close()

    def _end(self) -> None:
        self.close()
        if not self._pieces.full():
            self._pieces.put_nowait(None)

    def _run(self, read: Callable[["LogStream"], None]) -> None:
        try:
            read(self)
            self.put(None)
        except Exception as error:  # noqa: BLE001 - raised where the stream is read
            self.put(error)


async def log_response(
    request: Request,
    backend: LocalBackend,
    session: str,
    kernel: str | None,
    log_request: LogRequest,
    may_continue: Callable[[], bool],
    headers: Mapping[str, str] | None = None,
) -> StreamResponse:
    """Return the log as a response, which ends unless `may_continue`, checked every 15 s.

    Raises TooManyError, and as `OwnedReach.log`.
    """
    streams: set[LogStream] = request.app.state.log_streams
    check_cap(streams, backend.user, most=MAX_STREAMS, most_of_one=service_of(request).settings.web.logs, what="logs")

    def read(stream: LogStream) -> None:
        with backend.reach.log(session, kernel, log_request) as pieces:
            stream.set_source(pieces)
            for piece in pieces:
                if not stream.put(piece):
                    return

    with ExitStack() as stack:
        stream = LogStream(read, backend.user)
        streams.add(stream)
        stack.callback(streams.discard, stream)
        stack.callback(stream.close)
        first = await stream.get()
        if isinstance(first, Exception):
            raise first
        # From here on the response closes it.
        closing = stack.pop_all()
    return StreamResponse(_pieces(stream, may_continue), closing, "text/plain; charset=utf-8", headers)


async def _pieces(stream: LogStream, may_continue: Callable[[], bool]) -> AsyncIterator[bytes]:
    check_at = time.monotonic() + CHECK_S
    # If the token or the database cannot be checked, the reader is cut off.
    with suppress(MusterError):
        while True:
            until_check_s = check_at - time.monotonic()
            if until_check_s <= 0:
                if not await run_in_threadpool(may_continue):
                    return
                check_at = time.monotonic() + CHECK_S
                continue
            try:
                piece = await asyncio.wait_for(stream.get(), until_check_s)
            except TimeoutError:
                continue
            if piece is None:
                return
            if isinstance(piece, Exception):
                raise piece
            yield piece
