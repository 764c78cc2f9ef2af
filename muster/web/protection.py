"""Middleware before the application: security headers, a limit on request sizes, counts, and the audit log."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muster.service.audit import AuditLog
from muster.web.problems import MEDIA_TYPE, Problem
from muster.web.unix_connections import unix_origin

MAX_REQUEST_BYTES = 4 << 20
# As much as a sign-in or a small form.
MAX_UNKNOWN_BYTES = 64 << 10
BODY_TIMEOUT_S = 60.0
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TOO_LARGE_FOR_STRANGERS = (
    "a request as large as this needs a token; send one as a bearer token in the header Authorization"
)
_SAFE = {"GET", "HEAD", "OPTIONS"}
_METHODS = {*_SAFE, "DELETE", "PATCH", "POST", "PUT"}
_REFUSED = {401, 403, 429}
# Of one in the audit log, whose files are limited: some hundreds of the longest requests would fill them.
_MOST_OF_A_PATH = 1000


class SecurityHeaders:
    """A middleware that sets missing security headers on each response. `secure`: the server uses TLS."""

    def __init__(self, app: ASGIApp, *, secure: bool) -> None:
        self._app = app
        self._headers = {**_HEADERS, **({"Strict-Transport-Security": "max-age=31536000"} if secure else {})}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers)


class RequestCounts:
    """The number of answered requests, by method and status, and how long their answers took to begin."""

    BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The usual one is there from the beginning, so that a rate has its first value.
        self._answers = Counter({("GET", 200): 0})
        self._within = dict.fromkeys(self.BOUNDS_S, 0)
        self._sum_s = 0.0

    def add(self, method: str, status: int, took_s: float) -> None:
        with self._lock:
            # Methods are words that a client makes up.
            self._answers[method if method in _METHODS else "other", status] += 1
            self._sum_s += took_s
            for bound in self.BOUNDS_S:
                self._within[bound] += took_s <= bound

    def read(self) -> tuple[Mapping[tuple[str, int], int], Mapping[float, int], float]:
        """Return the answers by method and status, those within each bound of seconds, and the sum of seconds."""
        with self._lock:
            return dict(self._answers), dict(self._within), self._sum_s


class CountedRequests:
    """A middleware that counts each answer as it begins."""

    def __init__(self, app: ASGIApp, counts: RequestCounts) -> None:
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._counts.add(scope["method"], message["status"], time.monotonic() - began)
            await send(message)

        await self._app(scope, receive, send_and_count)


class RequestSize:
    """A middleware that refuses too large bodies, with or without a Content-Length, and those that come too slowly.

    More than a small body is kept for callers only whom `is_known` knows; it is called in a thread. A request that
    `is_streamed` is passed on as it comes: what reads its body limits size and time.
    """

    def __init__(
        self,
        app: ASGIApp,
        is_known: Callable[[HTTPConnection], bool],
        is_streamed: Callable[[HTTPConnection], bool] = lambda _connection: False,
        max_bytes: int = MAX_REQUEST_BYTES,
        timeout_s: float = BODY_TIMEOUT_S,
    ) -> None:
        self._app = app
        self._is_known = is_known
        self._is_streamed = is_streamed
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._is_streamed(HTTPConnection(scope)):
            if await run_in_threadpool(self._is_known, HTTPConnection(scope)):
                await self._app(scope, receive, send)
            else:
                await _send_problem(send, _problem(401, "no-token", "Unauthorized", _TOO_LARGE_FOR_STRANGERS))
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                body = await self._body(scope, receive)
        except _RefusedError as refused:
            await _send_problem(send, refused.problem)
            return
        except TimeoutError:
            detail = f"the request took longer than {self._timeout_s:g} s to arrive"
            await _send_problem(send, _problem(408, "too-slow", "Request Timeout", detail))
            return
        if body is None:
            return  # the client has closed the connection
        was_received = False

        async def receive_whole() -> Message:
            nonlocal was_received
            if was_received:
                return await receive()
            was_received = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, receive_whole, send)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body; None where the client has left. Raises _RefusedError."""
        length = Headers(scope=scope).get("content-length", "0")
        # A number of so many digits is no length, and parsing it would take long.
        announced = int(length) if length.isdecimal() and len(length) < 20 else self._max_bytes + 1
        is_known = False
        body, more = bytearray(), True
        while True:
            size = max(len(body), announced)
            if size > self._max_bytes:
                detail = f"the request is larger than {self._max_bytes >> 20} MiB; put large files into a data folder"
                raise _RefusedError(_problem(413, "too-large", "Content Too Large", detail))
            if size > MAX_UNKNOWN_BYTES and not is_known:
                is_known = await run_in_threadpool(self._is_known, HTTPConnection(scope))
                if not is_known:
                    raise _RefusedError(_problem(401, "no-token", "Unauthorized", _TOO_LARGE_FOR_STRANGERS))
            if not more:
                return bytes(body)
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)


class _RefusedError(Exception):
    """A request is not read any further."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def _problem(status: int, kind: str, title: str, detail: str) -> Problem:
    return Problem(type=f"urn:muster:{kind}", title=title, status=status, detail=detail)


async def _send_problem(send: Send, problem: Problem) -> None:
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": problem.model_dump_json().encode()})


class Audit:
    """A middleware that logs each changing or refused request as a line of JSON: who, from where, what, the result.

    A request with a method for changes that changes nothing sets `changes_nothing` in its state; one with another
    method that changes something sets `is_change`. A WebSocket counts as a change; it is recorded when it is opened.
    """

    def __init__(self, app: ASGIApp, log: AuditLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            state = scope.get("state", {})
            changes = state.get("is_change", scope["method"] not in _SAFE) and not state.get("changes_nothing")
            if changes or status in _REFUSED:
                self._log.write(_record(scope, status))

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_recorded = False

        async def send_and_record(message: Message) -> None:
            nonlocal is_recorded
            if not is_recorded:
                is_recorded = True
                self._log.write(_record(scope, _websocket_status(scope, message)))
            await send(message)

        await self._app(scope, receive, send_and_record)


def _websocket_status(scope: Scope, first: Message) -> int:
    """Return an HTTP status for a WebSocket's first message: 101, or why it was refused."""
    if first["type"] == "websocket.accept":
        return int(scope.get("state", {}).get("audit_status", 101))
    if first["type"] == "websocket.http.response.start":
        return int(first["status"])
    code = int(first.get("code", 0)) - 4000
    return code if 400 <= code < 600 else 403


def _record(scope: Scope, status: int) -> Mapping[str, Any]:
    state = scope.get("state", {})
    caller = state.get("caller")
    path = scope["path"] + _query(state.get("audit_query"))
    return {
        "user": caller.user if caller else None,
        "token": (caller.name or None) if caller else None,
        "source": "server",
        "from": scope["client"][0] if scope.get("client") else unix_origin(scope),
        "method": scope.get("method", "WEBSOCKET"),
        "path": path if len(path) <= _MOST_OF_A_PATH else f"{path[:_MOST_OF_A_PATH]}…",
        "sessions": state.get("audit_sessions", []),
        "owner": state.get("audit_owner"),
        "status": status,
        **state.get("audit_content", {}),
    }


def _query(noted: Mapping[str, str] | None) -> str:
    """Return what a request noted for the log as a query; nothing where it noted nothing."""
    return f"?{urlencode(noted, quote_via=quote, safe='/')}" if noted else ""
