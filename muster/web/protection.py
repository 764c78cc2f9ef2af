"""Middleware before the application: security headers, a limit on request sizes, and the audit log."""

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muster.service.audit import AuditLog
from muster.web.problems import MEDIA_TYPE, Problem

MAX_REQUEST_BYTES = 4 << 20
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SAFE = {"GET", "HEAD", "OPTIONS"}
_REFUSED = {401, 403, 429}


class SecurityHeaders:
    """Sets security headers on each response that has not set them itself; `secure`: the server uses TLS."""

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


class RequestSize:
    """Refuses request bodies that are too large, with or without a Content-Length."""

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_REQUEST_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length) > self._max_bytes:
            await self._refuse(send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client has closed the connection
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._max_bytes:
                await self._refuse(send)
                return
        was_received = False

        async def receive_whole() -> Message:
            nonlocal was_received
            if was_received:
                return await receive()
            was_received = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, receive_whole, send)

    async def _refuse(self, send: Send) -> None:
        refusal = Problem(
            type="urn:muster:too-large",
            title="Content Too Large",
            status=413,
            detail=f"the request is larger than {self._max_bytes >> 20} MiB; put large files into a data folder",
        )
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": refusal.model_dump_json().encode()})


class Audit:
    """Writes a line of JSON for each request that changes something or was refused: who, from where, what, the result.

    A request with a method for changes that changes nothing sets `changes_nothing` in its state. A WebSocket counts as
    a change; it is recorded when it is opened.
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
            changes = scope["method"] not in _SAFE and not scope.get("state", {}).get("changes_nothing")
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
    return {
        "user": caller.user if caller else None,
        "token": caller.name if caller else None,
        "source": "server",
        "from": scope["client"][0] if scope.get("client") else None,
        "method": scope.get("method", "WEBSOCKET"),
        "path": scope["path"],
        "sessions": state.get("audit_sessions", []),
        "owner": state.get("audit_owner"),
        "status": status,
    }
