"""A server for one opened app, beside the others in the server's own event loop."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from websockets.exceptions import InvalidState

from muster.core.values.errors import MusterError
from muster.service.reach.app_gateway import AppWay, app_address
from muster.web.opened_apps.door import TICKET, Door
from muster.web.opened_apps.headers import Between
from muster.web.opened_apps.proxy import AppProxy
from muster.web.opened_apps.websocket import MAX_MESSAGE_BYTES

_MOST_CONNECTIONS = 400
_STOP_PATIENCE_S = 1


@dataclass(frozen=True, slots=True)
class AppListening:
    """Where apps are opened: at the server's own address, with its certificate."""

    host: str
    ports: range
    tls_cert: Path | None = None
    tls_key: Path | None = None

    def bound(self, port: int) -> socket.socket | None:
        """None where something else is at that port."""
        found = socket.getaddrinfo(self.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen()
        except OSError:
            bound.close()
            return None
        return bound


class AppListener:
    def __init__(self, listening: AppListening, bound: socket.socket, way: AppWay, site: str) -> None:
        """`site`: scheme and host by which the browser reaches this server. It closes `bound` when it ends."""
        self.port = int(bound.getsockname()[1])
        self._bound = bound
        self._origin = f"{site}:{self.port}"
        self._door = Door(self.port, secure=site.startswith("https:"))
        address = app_address(way.app, self.port, way.token)
        between = Between(self._origin, f"127.0.0.1:{self.port}", way.app.port, address.authorization)
        self._proxy = AppProxy(way.socket, address.target, way.app.name, self._door, between)
        config = uvicorn.Config(
            self._proxy,
            ssl_certfile=listening.tls_cert,
            ssl_keyfile=listening.tls_key,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            access_log=False,
            log_config=None,
            limit_concurrency=_MOST_CONNECTIONS,
            # As the server itself has it: it holds back whoever is too quick.
            ws="websockets-sansio",
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=_STOP_PATIENCE_S,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def used_at(self) -> float:
        """On the monotonic clock."""
        return self._proxy.used_at

    def entrance(self) -> str:
        """A URL that lets in whoever goes there first, within half a minute."""
        self._proxy.note_use()
        return f"{self._origin}/?{TICKET}={self._door.ticket()}"

    async def start(self) -> None:
        """Raises MusterError."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._bound]))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({ready, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            self._bound.close()
            raise MusterError(f"nothing can listen at port {self.port}: {self._serving.exception() or 'it has ended'}")

    async def stop(self) -> None:
        await self._proxy.close()
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving


class _Server(uvicorn.Server):
    """Says when it listens, and leaves signals to the server that it is part of."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().shutdown(sockets)
        except InvalidState:
            # uvicorn's own: it cannot close a WebSocket whose browser is about to.
            for connection in list(self.server_state.connections):
                connection.transport.abort()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
