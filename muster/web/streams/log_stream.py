"""What kernels write, as an answer that goes on until its reader, or what he reads by, goes."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from muster.core.values.errors import MusterError
from muster.service.local_backend import LocalBackend
from muster.service.reach.logs import LogRequest
from muster.web.problems import TooManyError

MOST_STREAMS = 200
CHECK_S = 15.0
_WAITING = 64


class LogStream:
    """A thread of its own reads the log: it may be silent for days, and the application's threads are few."""

    def __init__(self, read: Callable[["LogStream"], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes | Exception | None] = asyncio.Queue(_WAITING)
        self._source: Any = None
        self._gone = threading.Event()
        threading.Thread(target=self._run, args=(read,), name="log", daemon=True).start()

    def opened(self, source: Iterable[bytes]) -> None:
        """From the thread: what it reads can be closed from now on."""
        self._source = source
        self.put(b"")

    def put(self, piece: bytes | Exception | None) -> bool:
        """From the thread: hands a piece on when there is room; False where nobody wants it any more."""
        if self._gone.is_set():
            return False
        try:
            waiting = asyncio.run_coroutine_threadsafe(self._pieces.put(piece), self._loop)
            while not self._gone.is_set():
                with suppress(TimeoutError):
                    waiting.result(1.0)
                    return True
            waiting.cancel()
        except RuntimeError:
            pass  # the server stops
        return False

    async def get(self) -> bytes | Exception | None:
        return await self._pieces.get()

    def stop(self) -> None:
        """From any thread, and from signal handlers: its reader gets no more."""
        self._loop.call_soon_threadsafe(self._end)

    def close(self) -> None:
        self._gone.set()
        if hasattr(self._source, "close"):
            # A generator cannot be closed while its thread is in it; then that ends with the next piece.
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
        except Exception as error:  # noqa: BLE001 - told to whoever reads the stream
            self.put(error)


async def log_answer(
    request: Request,
    asked: LocalBackend,
    session: str,
    kernel: str | None,
    wanted: LogRequest,
    may_go_on: Callable[[], bool],
    headers: Mapping[str, str] | None = None,
) -> StreamingResponse:
    """While it is read, `may_go_on` is asked now and then. Raises TooManyError, and as `LocalBackend.log`."""
    streams: set[LogStream] = request.app.state.streams
    if len(streams) >= MOST_STREAMS:
        raise TooManyError(f"{MOST_STREAMS} logs are being read; try again later")

    def read(stream: LogStream) -> None:
        with asked.log(session, kernel, wanted) as pieces:
            stream.opened(pieces)
            for piece in pieces:
                if not stream.put(piece):
                    return

    stream = LogStream(read)
    streams.add(stream)
    first = await stream.get()
    if isinstance(first, Exception):
        streams.discard(stream)
        raise first
    return StreamingResponse(
        _pieces(stream, streams, may_go_on), headers=headers, media_type="text/plain; charset=utf-8"
    )


async def _pieces(stream: LogStream, streams: set[LogStream], may_go_on: Callable[[], bool]) -> AsyncIterator[bytes]:
    due = time.monotonic() + CHECK_S
    # Where its token cannot be asked after, its reader is cut off, and comes back.
    with suppress(MusterError):
        try:
            while True:
                if time.monotonic() >= due:
                    if not await run_in_threadpool(may_go_on):
                        return
                    due = time.monotonic() + CHECK_S
                try:
                    piece = await asyncio.wait_for(stream.get(), CHECK_S)
                except TimeoutError:
                    continue
                if piece is None:
                    return
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            stream.close()
            streams.discard(stream)
