"""The server's process: where it listens, how it is protected, and how it ends."""

import logging
import os
import signal
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from ssl import SSLContext
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from muster.core.values.errors import BadInputError
from muster.core.values.garbage import keep_what_is_loaded
from muster.service.service import Service
from muster.web.app import make_app
from muster.web.connections import ImpatientHttp, LeavableWebSocket
from muster.web.opened_apps.server import AppAddresses
from muster.web.unix_connections import UnixConnections

log = logging.getLogger("muster.web")
_STOP_TIMEOUT_S = 3
_MAX_CONNECTIONS = 2000
_MAX_MESSAGE_BYTES = 64 << 10
_PING_S = 20.0


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options of `muster web`: its addresses and its protection.

    `behind_proxy`: a proxy on this machine names the caller (X-Forwarded-For). `app_ports`: the ports of opened apps;
    None if apps cannot be opened. `unix_socket`: where Unix users of this machine connect; `only_socket`: at no port.
    """

    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    behind_proxy: bool = False
    app_ports: range | None = None
    unix_socket: Path | None = None
    only_socket: bool = False

    @property
    def secure(self) -> bool:
        return self.tls_cert is not None

    def apps(self, tls: SSLContext | None) -> AppAddresses | None:
        return None if self.app_ports is None else AppAddresses(self.host, self.app_ports, tls)

    def tls_context(self) -> SSLContext | None:
        """Read the certificate and its key. Raises BadInputError."""
        if self.tls_cert is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except OSError as error:
            raise BadInputError(
                f"--tls-cert: it cannot be used: {error}; give a certificate and its key in PEM form"
            ) from None
        return context

    def bound_sockets(self) -> list[socket.socket]:
        """Return sockets at all addresses of the host, which do not listen yet. Raises BadInputError."""
        bound: list[socket.socket] = []
        if self.only_socket:
            return bound
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, address in dict.fromkeys(found):
                one = socket.socket(family, kind, protocol)
                bound.append(one)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind(address)
        except OSError as error:
            for one in bound:
                one.close()
            raise BadInputError(
                f"--host and --port: {self.host} port {self.port} cannot be served: {error.strerror or error};"
                " choose another, or end what uses it"
            ) from None
        return bound

    def check(self) -> None:
        """Refuse options that do not fit together or leave tokens unprotected. Raises BadInputError."""
        if self.unix_socket is not None and os.geteuid() != 0:
            # It would have the right of its own user, the administrator, by its own socket.
            raise BadInputError("--socket: only root's server can have one; start it as root, or leave --socket out")
        if self.only_socket and self.unix_socket is None:
            raise BadInputError("--only-socket: there is no socket; name one with --socket")
        if self.only_socket and self.app_ports is not None:
            raise BadInputError("--app-ports: apps are opened in the browser; leave --only-socket out")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise BadInputError("--tls-cert: a certificate and its key belong together; give --tls-cert and --tls-key")
        for option, path in (("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key)):
            if path is not None and not path.is_file():
                raise BadInputError(f"{option}: {path} is no file; name one in PEM form")
        if self.app_ports is not None and self.port in self.app_ports:
            raise BadInputError(f"--app-ports: {self.port} is the server's own port; choose others, such as 8100-8199")
        if not (self.secure or self.insecure or _is_local(self.host)):
            raise BadInputError(
                f"--host: {self.host} can be reached from other machines, and tokens would travel unprotected;"
                " give --tls-cert and --tls-key, or --insecure where something before it does that"
            )


def serve_pages(
    service: Service,
    options: ServerOptions,
    listening: Sequence[socket.socket],
    tls: SSLContext | None,
    door: socket.socket | None = None,
) -> None:
    """Serve at these sockets until SIGTERM or SIGINT, and on the connections of Unix users that come by the door."""
    logging.getLogger("uvicorn.access").disabled = True
    app = make_app(service, secure=options.secure, apps=options.apps(tls))
    config = uvicorn.Config(
        app,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        proxy_headers=options.behind_proxy,
        server_header=False,
        access_log=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_STOP_TIMEOUT_S,
        log_config=None,
        http=ImpatientHttp,
        ws=LeavableWebSocket,
        ws_max_size=_MAX_MESSAGE_BYTES,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PING_S,
        ws_per_message_deflate=False,
    )
    _Server(config, app, door).run(sockets=list(listening))


class _Server(uvicorn.Server):
    """A uvicorn server that exits with 0 after a signal, where uvicorn's own would die of it."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, door: socket.socket | None) -> None:
        super().__init__(config)
        self._state = app.state
        self._door = door

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # These streams have no end of their own: stopped here, they are not cut off in the middle.
        state = self._state
        for stream in (*state.subscribers, *state.log_streams, *state.terminals, *state.programs):
            stream.stop()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        keep_what_is_loaded()
        if self._door is not None:
            UnixConnections(self._door, self._protocol_for).open()
        for one in sockets or ():
            host, port, *_ = one.getsockname()
            scheme = "https" if self.config.is_ssl else "http"
            log.info("serving at %s://%s:%d", scheme, f"[{host}]" if ":" in host else host, port)

    def _protocol_for(self, state: dict[str, Any]) -> ImpatientHttp:
        """Return a protocol for a connection whose requests have this in their state."""
        return ImpatientHttp(self.config, self.server_state, {**self.lifespan.state, **state})

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.handle_exit)
        yield


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
