"""The server of one opened app, in the event loop of the main server."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ssl import SSLContext

import uvicorn

from muster.core.values.errors import MusterError
from muster.service.reach.app_gateway import AppTunnel, app_address
from muster.web.connections import ImpatientHttp, LeavableWebSocket
from muster.web.opened_apps.door import TICKET, Door
from muster.web.opened_apps.headers import AppOrigin
from muster.web.opened_apps.proxy import AppProxy
from muster.web.opened_apps.websocket import MAX_MESSAGE_BYTES

_MAX_CONNECTIONS = 400
_STOP_TIMEOUT_S = 1


@dataclass(frozen=True, slots=True)
class AppAddresses:
    """The addresses of opened apps: the main server's host, with its certificate."""

    host: str
    ports: range
    tls: SSLContext | None = None

    def bind(self, port: int) -> socket.socket | None:
        """Return a socket that listens at the port; None where the port is in use."""
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


class AppServer:
    """The server of one opened app."""

    def __init__(self, addresses: AppAddresses, bound: socket.socket, way: AppTunnel, site: str) -> None:
        """Prepare a server on `bound`, which it closes when it ends.

        `site` is the scheme and host by which the browser reaches the main server.
        """
        self.port = int(bound.getsockname()[1])
        self._bound = bound
        self._url = f"{site}:{self.port}"
        self._door = Door(self.port, secure=site.startswith("https:"))
        address = app_address(way.app, self.port, way.token)
        origin = AppOrigin(self._url, f"127.0.0.1:{self.port}", way.app.port, address.authorization)
        self._proxy = AppProxy(way.socket, address.target, way.app.name, self._door, origin)
        tls = addresses.tls
        config = uvicorn.Config(
            self._proxy,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            access_log=False,
            log_config=None,
            limit_concurrency=_MAX_CONNECTIONS,
            http=ImpatientHttp,
            ws=LeavableWebSocket,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=_STOP_TIMEOUT_S,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def used_at(self) -> float:
        """Return when the app was last used, on the monotonic clock."""
        return self._proxy.used_at

    def entrance(self) -> str:
        """Return a URL that opens the app once, within 30 seconds."""
        self._proxy.record_last_use()
        return f"{self._url}/?{TICKET}={self._door.ticket()}"

    async def start(self) -> None:
        """Serve until `stop`. Raises MusterError."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._bound]))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({ready, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._serving.done():
            self._bound.close()
            raise MusterError(
                f"port {self.port} cannot be served: {self._serving.exception() or 'the server has ended'}"
            )

    async def stop(self) -> None:
        await self._proxy.close()
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving


class _Server(uvicorn.Server):
    """A uvicorn server that notifies when it is ready, and leaves signals to the main server."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
