"""A session's app as the gateway finds it, without a session: it serves at a socket, and remembers what it received."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import uvicorn

from muster.core.model.apps import App
from muster.core.model.session import Session
from muster.service.reach.app_gateway import AppTunnel

COOKIES = (
    "login=secret; Path=/; HttpOnly",
    "wide=1; Domain=example.org; Path=/",
    "muster=stolen; Path=/",
    "Muster-App-8100-ab = x",
    "__Host-muster=stolen; Secure; Path=/",
    "=muster=stolen",
    "muster",
)
ENDLESS_BYTES = 256 << 20
_PIECE = b"x" * 65536


@dataclass
class Upstream:
    """An app. `go` lets it finish an answer; `gone` says that its reader has left."""

    go: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    gone: threading.Event = field(default_factory=threading.Event)
    close_code: int | None = None
    sent: int = 0
    requests: list[str] = field(default_factory=list)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        self.requests.append(scope["path"])
        if scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
            return
        answers = {"/slow": self._slow, "/endless": self._endless, "/upload": self._upload, "/set": self._set}
        answer = answers.get(scope["path"], self._echo)
        await answer(scope, receive, send)

    async def _echo(self, scope: Any, receive: Any, send: Any) -> None:
        del receive
        headers = [[name.decode(), value.decode("latin-1")] for name, value in scope["headers"]]
        target = scope["raw_path"].decode() + "?" + scope["query_string"].decode()
        echoed = {"method": scope["method"], "target": target, "headers": headers}
        await start(send, 200, [(b"content-type", b"application/json"), (b"x-own", b"1")])
        await send({"type": "http.response.body", "body": json.dumps(echoed).encode()})

    async def _slow(self, scope: Any, receive: Any, send: Any) -> None:
        """Send half an answer, and the rest when the test lets it."""
        del scope, receive
        await start(send, 200, [])
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        await asyncio.to_thread(self.go.wait, 60)
        await send({"type": "http.response.body", "body": b"rest"})

    async def _endless(self, scope: Any, receive: Any, send: Any) -> None:
        del scope

        async def until_gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                continue
            self.gone.set()

        watching = asyncio.create_task(until_gone())
        await start(send, 200, [])
        while self.sent < ENDLESS_BYTES and not self.gone.is_set():
            await send({"type": "http.response.body", "body": _PIECE, "more_body": True})
            self.sent += len(_PIECE)
        await asyncio.wait_for(watching, 60)

    async def _upload(self, scope: Any, receive: Any, send: Any) -> None:
        """Tells the size; what has come already is known before the rest comes."""
        del scope
        size, more = 0, True
        while more:
            message = await receive()
            size += len(message["body"])
            more = message["more_body"]
            self.begun.set()
        await start(send, 200, [])
        await send({"type": "http.response.body", "body": str(size).encode()})

    async def _set(self, scope: Any, receive: Any, send: Any) -> None:
        """Send a redirect with cookies, and headers that are not for an app to send."""
        del receive
        local = dict(scope["headers"])[b"host"]
        await start(
            send,
            302,
            [
                *((b"set-cookie", cookie.encode()) for cookie in COOKIES),
                (b"location", b"http://" + local + b"/lab?x=1#top"),
                (b"clear-site-data", b'"cookies"'),
                (b"strict-transport-security", b"max-age=1"),
                (b"content-security-policy", b"default-src *"),
            ],
        )
        await send({"type": "http.response.body", "body": b""})

    async def _websocket(self, scope: Any, receive: Any, send: Any) -> None:
        """Echo messages. `close` closes in its own way; `flood` sends for ever."""
        await receive()
        if scope["path"] == "/refused":
            await send({"type": "websocket.close"})
            return
        chosen = scope["subprotocols"][-1] if scope["subprotocols"] else None
        headers = [(b"set-cookie", cookie.encode()) for cookie in COOKIES[:3]]
        await send({"type": "websocket.accept", "subprotocol": chosen, "headers": headers})
        while (message := await receive())["type"] == "websocket.receive":
            text = message.get("text")
            if text == "close":
                await send({"type": "websocket.close", "code": 4321, "reason": "bye"})
                return
            if text == "headers":
                echoed = {name.decode(): value.decode() for name, value in scope["headers"]}
                await send({"type": "websocket.send", "text": json.dumps(echoed)})
            elif text == "flood":
                while self.sent < ENDLESS_BYTES:
                    await send({"type": "websocket.send", "bytes": _PIECE})
                    self.sent += len(_PIECE)
            else:
                kind = "bytes" if text is None else "text"
                await send({"type": "websocket.send", kind: message[kind]})
        self.close_code = message["code"]
        self.gone.set()


async def start(send: Any, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


def way(session: Session, app: App, socket: Path, *, is_open: bool = True) -> AppTunnel:
    tunnel = SimpleNamespace(poll=lambda: None if is_open else 255)
    return AppTunnel(session, app, "t0ken", socket, tunnel, ExitStack())


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


class Server(uvicorn.Server):
    """A server that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextmanager
def serving(loop: Loop, app: Any, socket: Path) -> Iterator[None]:
    config = uvicorn.Config(app, uds=str(socket), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = Server(config)

    async def begun() -> asyncio.Task[None]:
        task = asyncio.create_task(server.serve())
        await server.ready.wait()
        return task

    async def ended(task: asyncio.Task[None]) -> None:
        server.should_exit = True
        await task

    task = loop.run(begun())
    try:
        yield
    finally:
        loop.run(ended(task))
