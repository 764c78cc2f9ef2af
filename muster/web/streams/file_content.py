"""Files of folders as responses and as bodies of requests: passed on as they come, by a thread for each."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from urllib.parse import quote

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from starlette.requests import ClientDisconnect, HTTPConnection

from muster.core.values.errors import BadInputError
from muster.service.folders.files import FilePlace, OpenedFile, Upload
from muster.service.identity.tokens import NoTokenError
from muster.service.local_backend import LocalBackend
from muster.web.caller import service_of
from muster.web.streams.caps import check_cap
from muster.web.streams.stream_response import StreamResponse

MAX_FILE_STREAMS = 100
CHECK_S = 15.0
# A picture that a page shows.
MOST_SHOWN_BYTES = 20 << 20
_PIECE_BYTES = 1 << 20
_SILENCE_S = 60.0
_UPLOADS = re.compile(r"/api/v1/folders/[^/]+/content|/folders/[^/]+/[^/]+/content")
# What a browser may take it for. Of these alone it makes nothing but a picture.
_PICTURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
)
# Whatever a file holds, nothing in it is run, and no page of ours can be reached from it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


class FileStream:
    """A file on its way to or from a user, for as long as `may_continue` says."""

    def __init__(self, user: str, may_continue: Callable[[], bool]) -> None:
        self.user = user
        self._may_continue = may_continue
        self._checked_at = time.monotonic()

    async def check(self) -> None:
        """Look every 15 s whether the user may go on. Raises NoTokenError where they may not, and MusterError."""
        if time.monotonic() - self._checked_at < CHECK_S:
            return
        if not await run_in_threadpool(self._may_continue):
            raise NoTokenError("your token or sign-in does not hold any more")
        self._checked_at = time.monotonic()


def is_upload(connection: HTTPConnection) -> bool:
    """Return whether a request's body is a file for a folder. A page's has the page's own secret in a header."""
    if connection.scope["method"] != "PUT" or not _UPLOADS.fullmatch(connection.scope["path"]):
        return False
    return connection.scope["path"].startswith("/api/") or "x-csrf-token" in connection.headers


def picture_type(beginning: bytes) -> str | None:
    """Return the media type of a picture that a browser may show; None for anything else, such as SVG."""
    return next((kind for pattern, kind in _PICTURES if pattern.match(beginning)), None)


async def file_response(
    request: Request, backend: LocalBackend, place: FilePlace, may_continue: Callable[[], bool], *, shows: bool = False
) -> Response:
    """Return a file, or a directory as a tar file, to be saved. With `shows`, a picture may be shown instead.

    It breaks off unless `may_continue`, checked every 15 s. Raises TooManyError, and as `OwnedFolders.open_file`.
    """
    streams = request.app.state.file_streams
    stream = FileStream(backend.user, may_continue)
    _check_cap(request, backend)
    with ExitStack() as stack:
        streams.add(stream)
        stack.callback(streams.discard, stream)
        opened, first = await run_in_threadpool(_opened, stack, backend.folders.open_file(place))
        # From here on the response closes it.
        closing = stack.pop_all()
    picture = picture_type(first) if shows and (opened.file.size or 0) <= MOST_SHOWN_BYTES else None
    kind = picture or ("application/x-tar" if opened.file.is_directory else "application/octet-stream")
    way = "inline" if picture else "attachment"
    headers = {**_HEADERS, "Content-Disposition": f"{way}; filename*=UTF-8''{quote(opened.file.name, safe='')}"}
    if opened.file.size is not None:
        headers["Content-Length"] = str(opened.file.size)

    async def pieces() -> AsyncIterator[bytes]:
        piece: bytes | None = first
        while piece:
            yield piece
            # An end would make it look whole.
            await stream.check()
            piece = await run_in_threadpool(_next, opened.pieces)

    return StreamResponse(pieces(), closing, kind, headers)


def _opened(opening: ExitStack, file: AbstractContextManager[OpenedFile]) -> tuple[OpenedFile, bytes]:
    opened = opening.enter_context(file)
    return opened, _next(opened.pieces)


def _next(pieces: Iterator[bytes]) -> bytes:
    """Return the next piece; empty at the end."""
    return next(pieces, b"")


async def take_upload(
    request: Request, backend: LocalBackend, place: FilePlace, may_continue: Callable[[], bool], *, replaces: bool
) -> None:
    """Write the request's body to a file of a folder, whole or not at all, as long as `may_continue`.

    Raises BadInputError, TooManyError, NoTokenError, and as `OwnedFolders.upload`.
    """
    size = _announced_size(request)
    streams = request.app.state.file_streams
    stream = FileStream(backend.user, may_continue)
    _check_cap(request, backend)
    streams.add(stream)
    opening = ExitStack()
    try:
        begin = backend.folders.upload(place, size, replaces=replaces)
        upload: Upload = await run_in_threadpool(opening.enter_context, begin)
        await _pass_on(request, stream, upload, size)
    finally:
        streams.discard(stream)
        await asyncio.shield(run_in_threadpool(opening.close))


async def _pass_on(request: Request, stream: FileStream, upload: Upload, size: int) -> None:
    """Raises BadInputError where the body breaks off, and MusterError."""
    waiting = bytearray()
    received = 0
    bodies = request.stream()
    while True:
        try:
            async with asyncio.timeout(_SILENCE_S):
                body = await anext(bodies, None)
        except (TimeoutError, ClientDisconnect):
            raise BadInputError("body: the upload broke off; nothing is kept of it") from None
        await stream.check()
        if body is None:
            break
        received += len(body)
        if received > size:
            raise BadInputError("body: it is longer than its Content-Length")
        waiting += body
        if len(waiting) >= _PIECE_BYTES:
            await run_in_threadpool(upload.write, bytes(waiting))
            waiting.clear()
    if received < size:
        raise BadInputError("body: it is shorter than its Content-Length; nothing is kept of it")
    if waiting:
        await run_in_threadpool(upload.write, bytes(waiting))
    await run_in_threadpool(upload.finish)


def _announced_size(request: Request) -> int:
    """Raises BadInputError."""
    text = request.headers.get("content-length", "")
    if not text.isdecimal() or len(text) > 18:
        raise BadInputError("Content-Length: it is missing; an upload says its size first")
    most = service_of(request).settings.web.upload_max_size
    if int(text) > most:
        raise BadInputError(f"body: it has {text} bytes, and upload_max_size is {most}; copy it by a session instead")
    return int(text)


def _check_cap(request: Request, backend: LocalBackend) -> None:
    """Raises TooManyError."""
    streams = request.app.state.file_streams
    most_of_one = service_of(request).settings.web.files
    check_cap(streams, backend.user, most=MAX_FILE_STREAMS, most_of_one=most_of_one, what="downloads and uploads")


def first_bytes(backend: LocalBackend, place: FilePlace, most_bytes: int) -> bytes:
    """Return the beginning of a file. Raises as `OwnedFolders.open_file`."""
    with backend.folders.open_file(place, most_bytes) as opened:
        return b"".join(opened.pieces)
