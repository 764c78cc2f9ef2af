"""The reverse proxy of an opened app: passes requests and responses on as they arrive."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from html import escape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx
from starlette.types import Message, Receive, Scope, Send

from muster.web.opened_apps.door import TICKET, Door
from muster.web.opened_apps.headers import AppOrigin, Headers, from_app, to_app
from muster.web.opened_apps.websocket import carry

_MAX_CONNECTIONS = 200
_CONNECT_S = 10.0
_TIMEOUT = {"connect": _CONNECT_S, "pool": _CONNECT_S, "read": None, "write": None}
# Any other one is no answer's, and uvicorn can send none of them.
_STATUSES = range(200, 600)
_NO_APP_METHODS = {"CONNECT", "TRACE"}
_PAGE_HEADERS = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
]
_SIGNED_OUT = "This app is not open in this browser. Open it from its session's page in Muster."
_FOREIGN = "A page of another site sent this request. Open the app from its session's page in Muster."
_NO_WORKER = "Service workers are refused here: another app will use this port later."


class _GoneError(Exception):
    """The browser has closed the connection."""


class AppProxy:
    """The ASGI application of one opened app. `socket` is its tunnel's; `target` is the path of its first page."""

    def __init__(self, socket: Path, target: str, name: str, door: Door, origin: AppOrigin) -> None:
        self._socket = socket
        self._target = target
        self._name = name
        self._door = door
        self._origin = origin
        self._transport = httpx.AsyncHTTPTransport(
            uds=str(socket),
            trust_env=False,
            # The tunnel has no TLS. To read the authorities would keep all other apps waiting.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            limits=httpx.Limits(max_connections=_MAX_CONNECTIONS),
        )
        self._closed = False
        self.used_at = time.monotonic()

    async def close(self) -> None:
        """Refuse all further requests."""
        self._closed = True
        await self._transport.aclose()

    def record_last_use(self) -> None:
        self.used_at = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: Headers = scope["headers"]
        if scope["type"] == "http" and scope["path"] == "/" and scope["query_string"].startswith(f"{TICKET}=".encode()):
            await self._let_in(scope, send)
        elif self._closed or not self._door.lets_in(headers):
            await _page(scope, send, 401, _SIGNED_OUT)
        elif not _is_own(scope, headers, self._origin):
            await _page(scope, send, 403, _FOREIGN)
        elif dict(headers).get(b"service-worker") is not None:
            await _page(scope, send, 403, _NO_WORKER)
        elif scope["type"] == "websocket":
            self.record_last_use()
            app_headers = to_app(headers, self._origin, _client(scope))
            await carry(scope, receive, send, self._socket, app_headers, self._origin, self.record_last_use)
        elif scope["method"] in _NO_APP_METHODS:
            await _page(scope, send, 405, "This method is not for apps.")
        else:
            self.record_last_use()
            await self._http(scope, receive, send)

    async def _let_in(self, scope: Scope, send: Send) -> None:
        """Exchange the ticket for the cookie, and redirect, so that no address line or history shows the ticket."""
        (ticket,) = parse_qs(scope["query_string"].decode("latin-1")).get(TICKET, [""])[:1]
        cookie = None if self._closed else self._door.redeem(ticket)
        if cookie is None and (self._closed or not self._door.lets_in(scope["headers"])):
            await _page(scope, send, 401, _SIGNED_OUT)
            return
        location = f"{self._origin.url}{self._target}"
        headers = [*_PAGE_HEADERS, *(cookie or []), (b"location", location.encode("ascii"))]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(receive)
        started = False

        async def send_and_record(message: Message) -> None:
            nonlocal started
            started = True
            self.record_last_use()
            await send(message)

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(request.cancel_when_gone, tasks.cancel_scope)
                await self._exchange(scope, request, send_and_record)
                tasks.cancel_scope.cancel()
        except* _GoneError:
            pass
        except* httpx.HTTPError:
            # A response that has begun is cut off; browsers report that as an error.
            if not started:
                await _page(scope, send, 502, f"{self._name} does not answer. It may be starting: reload the page.")

    async def _exchange(self, scope: Scope, request: "_Request", send: Send) -> None:
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        headers = to_app(scope["headers"], self._origin, _client(scope))
        app_request = httpx.Request(
            scope["method"],
            f"http://{self._origin.local}/",
            headers=headers,
            content=request.body() if _has_body(scope["headers"]) else None,
            extensions={"target": target, "timeout": _TIMEOUT},
        )
        if not _has_body(scope["headers"]):
            request.all_read.set()
        response = await self._transport.handle_async_request(app_request)
        try:
            if response.status_code not in _STATUSES:
                raise httpx.RemoteProtocolError(f"status {response.status_code}")
            response_headers = from_app(response.headers.raw, self._origin)
            await send({"type": "http.response.start", "status": response.status_code, "headers": response_headers})
            async for chunk in response.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()
        await send({"type": "http.response.body", "body": b""})


class _Request:
    """A request's body as it arrives, and then a watch over its connection."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.all_read = asyncio.Event()

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body. Raises _GoneError."""
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                raise _GoneError
            more = message.get("more_body", False)
            yield message.get("body", b"")
        self.all_read.set()

    async def cancel_when_gone(self, exchange: anyio.CancelScope) -> None:
        """Cancel the exchange when the browser closes the connection: an app may respond for hours."""
        await self.all_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            continue
        exchange.cancel()


def _has_body(headers: Headers) -> bool:
    names = {name for name, _ in headers}
    return b"content-length" in names or b"transfer-encoding" in names


def _is_own(scope: Scope, headers: Headers, app: AppOrigin) -> bool:
    """Tell whether the request is from the app's own page or a navigation.

    Other ports of this host serve other users' apps, whose pages must not send requests to this one. Nor may a page
    that came without TLS, which anybody on the way may have written, to an app that is reached by TLS.
    """
    named = dict(headers)
    origin, site = named.get(b"origin"), named.get(b"sec-fetch-site", b"same-origin")
    if origin is not None and origin != b"null":
        with suppress(ValueError):
            parts = urlsplit(origin.decode("latin-1"))
            same_host = parts.netloc == named.get(b"host", b"").decode("latin-1")
            return same_host and (parts.scheme == "https" or not app.secure)
        return False
    if scope["type"] == "websocket" or origin is not None:
        return site == b"same-origin" and b"sec-fetch-site" in named
    may_be_followed = scope["method"] in {"GET", "HEAD"} and named.get(b"sec-fetch-mode") == b"navigate"
    return site in {b"same-origin", b"none"} or may_be_followed


def _client(scope: Scope) -> str:
    return str(scope["client"][0]) if scope.get("client") else ""


async def _page(scope: Scope, send: Send, status: int, text: str) -> None:
    body = f"<!doctype html><html lang=en><title>Muster</title><p>{escape(text)}</p></html>".encode()
    kind = "http" if scope["type"] == "http" else "websocket.http"
    await send({"type": f"{kind}.response.start", "status": status, "headers": _PAGE_HEADERS})
    await send({"type": f"{kind}.response.body", "body": body})
