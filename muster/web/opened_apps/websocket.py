"""Carry a WebSocket between a browser and an opened app."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from muster.web.opened_apps.headers import AppOrigin, Headers, from_app

# A notebook sends an output in one message.
MAX_MESSAGE_BYTES = 32 << 20
_MAX_QUEUED_MESSAGES = 2
_OPEN_S = 30.0
_CLOSE_S = 1.0
_GOING_AWAY, _FAILED, _NO_CODE = 1001, 1011, 1005
_MAX_REASON_BYTES = 123


async def carry(
    scope: Scope,
    receive: Receive,
    send: Send,
    socket: Path,
    headers: Headers,
    origin: AppOrigin,
    record_last_use: Callable[[], None],
) -> None:
    """Pass messages on until either side closes, and send its code and reason to the other side.

    `headers` are those of the request to the app.
    """
    await receive()
    query = scope["query_string"].decode("ascii")
    path = scope["raw_path"].decode("ascii") + (f"?{query}" if query else "")
    try:
        connection = await unix_connect(
            str(socket),
            f"ws://{origin.local}{path}",
            subprotocols=[Subprotocol(name) for name in scope["subprotocols"]] or None,
            additional_headers=[
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name != b"host"
            ],
            user_agent_header=None,
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            max_queue=_MAX_QUEUED_MESSAGES,
            ping_interval=None,
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
        )
    except (InvalidHandshake, InvalidURI, OSError, TimeoutError, EOFError, ValueError):
        # A ValueError: the app leads elsewhere, where nobody is to be asked.
        await send({"type": "websocket.close", "code": _FAILED})
        return
    try:
        await send({"type": "websocket.accept", **_accepted(connection, origin)})
        async with anyio.create_task_group() as tasks:

            async def to_browser() -> None:
                # Sending fails where the browser has closed the connection.
                with suppress(OSError):
                    await _to_browser(connection, send, record_last_use)
                tasks.cancel_scope.cancel()

            tasks.start_soon(to_browser)
            await _to_app(connection, receive, record_last_use)
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            try:
                await connection.close(_GOING_AWAY)
            finally:
                connection.transport.abort()


def _accepted(connection: ClientConnection, origin: AppOrigin) -> dict[str, object]:
    items = connection.response.headers.raw_items() if connection.response else ()
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in items]
    cookies = [(name, value) for name, value in from_app(raw, origin) if name == b"set-cookie"]
    return {"subprotocol": connection.subprotocol, "headers": cookies}


async def _to_app(connection: ClientConnection, receive: Receive, record_last_use: Callable[[], None]) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        record_last_use()
        text = message.get("text")
        try:
            await connection.send(message["bytes"] if text is None else text)
        except ConnectionClosed:
            # The other direction closes the browser's side, with the app's own code.
            await anyio.sleep_forever()
    reason = str(message.get("reason") or "")
    await connection.close(_sendable(message.get("code", _NO_CODE)), _short(reason))


async def _to_browser(connection: ClientConnection, send: Send, record_last_use: Callable[[], None]) -> None:
    try:
        while True:
            message = await connection.recv()
            record_last_use()
            kind = "text" if isinstance(message, str) else "bytes"
            await send({"type": "websocket.send", kind: message})
    except ConnectionClosed as closed:
        code = closed.rcvd.code if closed.rcvd else _FAILED
        reason = closed.rcvd.reason if closed.rcvd else ""
        await send({"type": "websocket.close", "code": _sendable(code), "reason": _short(reason)})


def _sendable(code: int) -> int:
    """Return a close code that may be sent: 1005, 1006 and 1015 only mean that none was received."""
    if code == _NO_CODE:
        return 1000
    return code if code in range(3000, 5000) or code in {1000, 1001, 1002, 1003, *range(1007, 1015)} else _FAILED


def _short(reason: str) -> str:
    return reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
