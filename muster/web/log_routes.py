"""What kernels write, as a stream that ends when its reader goes."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from muster.core.errors import MusterError
from muster.service.session_logs import LogWanted
from muster.web.caller import Asked
from muster.web.problems import TooManyError, answers
from muster.web.session_routes import Reference

router = APIRouter(prefix="/sessions", tags=["sessions"])
MOST_STREAMS = 200
_WAITING = 64


class _Stream:
    """A thread of its own reads the log: it may be silent for days, and the application's threads are few."""

    def __init__(self, read: Callable[["_Stream"], None]) -> None:
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

    def _run(self, read: Callable[["_Stream"], None]) -> None:
        try:
            read(self)
            self.put(None)
        except Exception as error:  # noqa: BLE001 - told to whoever reads the stream
            self.put(error)


@router.get(
    "/{session}/kernels/{kernel}/log",
    responses=answers(404, 409, 422) | {200: {"description": "Its log", "content": {"text/plain": {}}}},
    response_class=Response,
)
async def log(
    request: Request,
    asked: Asked,
    session: Reference,
    kernel: Annotated[str, Path(max_length=64, description="such as main1; a dash for the main kernel")],
    *,
    follow: Annotated[bool, Query(description="go on until the kernel ends")] = False,
    tail: Annotated[int | None, Query(ge=0, le=1_000_000, description="only that many of the last lines")] = None,
    timestamps: Annotated[bool, Query(description="before each line, when it was written")] = False,
    app: Annotated[str | None, Query(max_length=64, description="what this app has written instead")] = None,
) -> Response:
    """What a kernel has written: while it runs as it comes, afterwards what was kept."""
    streams: set[_Stream] = request.app.state.streams
    if len(streams) >= MOST_STREAMS:
        raise TooManyError(f"{MOST_STREAMS} logs are being read; try again later")
    wanted = LogWanted(follow=follow, tail=tail, timestamps=timestamps, app=app)

    def read(stream: _Stream) -> None:
        with asked.log(session, None if kernel == "-" else kernel, wanted) as pieces:
            stream.opened(pieces)
            for piece in pieces:
                if not stream.put(piece):
                    return

    stream = _Stream(read)
    streams.add(stream)
    first = await stream.get()
    if isinstance(first, Exception):
        streams.discard(stream)
        raise first
    return StreamingResponse(_pieces(stream, streams), media_type="text/plain; charset=utf-8")


async def _pieces(stream: _Stream, streams: set[_Stream]) -> AsyncIterator[bytes]:
    try:
        while (piece := await stream.get()) is not None:
            if isinstance(piece, MusterError):
                return
            if isinstance(piece, Exception):
                raise piece
            yield piece
    finally:
        stream.close()
        streams.discard(stream)
