"""A WebSocket between a browser and an app."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from muster.web.opened_apps.headers import Between, Headers, from_app

# A notebook's output comes in one piece.
MAX_MESSAGE_BYTES = 32 << 20
_WAITING_MESSAGES = 2
_OPEN_S = 30.0
_CLOSE_S = 1.0
_GOING_AWAY, _FAILED, _NO_CODE = 1001, 1011, 1005
_LONGEST_REASON = 123


async def carry(
    scope: Scope,
    receive: Receive,
    send: Send,
    socket: Path,
    headers: Headers,
    between: Between,
    note_use: Callable[[], None],
) -> None:
    """Until either end closes it, whose code and reason the other one hears. `headers`: what the app is told."""
    await receive()
    query = scope["query_string"].decode("ascii")
    path = scope["raw_path"].decode("ascii") + (f"?{query}" if query else "")
    try:
        connection = await unix_connect(
            str(socket),
            f"ws://{between.local}{path}",
            subprotocols=[Subprotocol(name) for name in scope["subprotocols"]] or None,
            additional_headers=[
                (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name != b"host"
            ],
            user_agent_header=None,
            compression=None,
            max_size=MAX_MESSAGE_BYTES,
            max_queue=_WAITING_MESSAGES,
            ping_interval=None,
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
        )
    except (InvalidHandshake, InvalidURI, OSError, TimeoutError, EOFError):
        await send({"type": "websocket.close", "code": _FAILED})
        return
    try:
        await send({"type": "websocket.accept", **_accepted(connection, between)})
        async with anyio.create_task_group() as tasks:

            async def to_browser() -> None:
                # What cannot be sent is for a browser that has gone.
                with suppress(OSError):
                    await _to_browser(connection, send, note_use)
                tasks.cancel_scope.cancel()

            tasks.start_soon(to_browser)
            await _to_app(connection, receive, note_use)
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            try:
                await connection.close(_GOING_AWAY)
            finally:
                connection.transport.abort()


def _accepted(connection: ClientConnection, between: Between) -> dict[str, object]:
    told = connection.response.headers.raw_items() if connection.response else ()
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in told]
    cookies = [(name, value) for name, value in from_app(raw, between) if name == b"set-cookie"]
    return {"subprotocol": connection.subprotocol, "headers": cookies}


async def _to_app(connection: ClientConnection, receive: Receive, note_use: Callable[[], None]) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        note_use()
        text = message.get("text")
        try:
            await connection.send(message["bytes"] if text is None else text)
        except ConnectionClosed:
            # The browser is told by the other direction, with the app's own code.
            await anyio.sleep_forever()
    reason = str(message.get("reason") or "")
    await connection.close(_sendable(message.get("code", _NO_CODE)), _short(reason))


async def _to_browser(connection: ClientConnection, send: Send, note_use: Callable[[], None]) -> None:
    try:
        while True:
            message = await connection.recv()
            note_use()
            kind = "text" if isinstance(message, str) else "bytes"
            await send({"type": "websocket.send", kind: message})
    except ConnectionClosed as closed:
        code = closed.rcvd.code if closed.rcvd else _FAILED
        reason = closed.rcvd.reason if closed.rcvd else ""
        await send({"type": "websocket.close", "code": _sendable(code), "reason": _short(reason)})


def _sendable(code: int) -> int:
    """Codes 1005, 1006 and 1015 only tell that there was none."""
    if code == _NO_CODE:
        return 1000
    return code if code in range(3000, 5000) or code in {1000, 1001, 1002, 1003, *range(1007, 1015)} else _FAILED


def _short(reason: str) -> str:
    return reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
