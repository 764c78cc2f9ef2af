"""The server's process: where it listens, and what it must not do without being told."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from muster.core.values.errors import BadInputError
from muster.service.service import Service
from muster.web.app import make_app
from muster.web.opened_apps.server import AppListening

_STOP_PATIENCE_S = 3
_MOST_CONNECTIONS = 2000
_MOST_MESSAGE_BYTES = 64 << 10
_PING_S = 20.0


@dataclass(frozen=True, slots=True)
class Listening:
    """Where, and how protected. `behind_proxy`: a proxy on this machine tells who calls (X-Forwarded-For).

    `app_ports`: where sessions' apps are opened; None: nowhere.
    """

    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    behind_proxy: bool = False
    app_ports: range | None = None

    @property
    def secure(self) -> bool:
        return self.tls_cert is not None

    @property
    def apps(self) -> AppListening | None:
        if self.app_ports is None:
            return None
        return AppListening(self.host, self.app_ports, self.tls_cert, self.tls_key)

    def check(self) -> None:
        """Raises BadInputError."""
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


def serve(service: Service, listening: Listening) -> None:
    """Until SIGTERM or SIGINT. Raises BadInputError."""
    listening.check()
    logging.getLogger("uvicorn.access").disabled = True
    app = make_app(service, secure=listening.secure, apps=listening.apps)
    config = uvicorn.Config(
        app,
        host=listening.host,
        port=listening.port,
        ssl_certfile=listening.tls_cert,
        ssl_keyfile=listening.tls_key,
        proxy_headers=listening.behind_proxy,
        server_header=False,
        access_log=False,
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_STOP_PATIENCE_S,
        log_config=None,
        # Of the implementations the one that holds its sender back when its reader is slow, and its reader when we are.
        ws="websockets-sansio",
        ws_max_size=_MOST_MESSAGE_BYTES,
        ws_ping_interval=_PING_S,
        ws_ping_timeout=_PING_S,
        ws_per_message_deflate=False,
    )
    try:
        _Server(config, app).run()
    except OSError as error:  # of the certificate; uvicorn itself tells of a port that is taken
        raise BadInputError(
            f"--tls-cert: it cannot be used: {error}; give a certificate and its key in PEM form"
        ) from None


class _Server(uvicorn.Server):
    """Ends well when it is told to end, where uvicorn's would die of the signal in the end."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._streams = app.state

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # What would go on for ever is not cut off in the middle.
        for stream in (*self._streams.listeners, *self._streams.streams, *self._streams.terminals):
            stream.stop()
        super().handle_exit(sig, frame)

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
