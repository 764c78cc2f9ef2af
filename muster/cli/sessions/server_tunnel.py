"""A port of this machine that leads to an app of a session, by the server: each connection is a program there."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from muster.core.launch.manifest import LaunchPolicy
from muster.core.values.errors import MusterError
from muster.engine.execution import Execution, Programs, output_pieces

_BUSYBOX = f"{LaunchPolicy().runtime_path}/bin/busybox"
_LOOPBACK = "127.0.0.1"
_PIECE_BYTES = 1 << 16


@contextmanager
def served_port(kernel: Programs, app_port: int, local_port: int) -> Iterator[None]:
    """Serve `local_port` of this machine's loopback for as long as the context lasts. Raises OSError."""

    class _Connection(socketserver.BaseRequestHandler):
        request: socket.socket

        def handle(self) -> None:
            # The server says to the browser what it would say of an app that nobody serves: nothing.
            with suppress(MusterError), kernel.start([_BUSYBOX, "nc", _LOOPBACK, str(app_port)]) as execution:
                _carry(self.request, execution)

    with _Listener((_LOOPBACK, local_port), _Connection) as listener:
        serving = threading.Thread(target=listener.serve_forever, name="tunnel", daemon=True)
        serving.start()
        try:
            yield
        finally:
            listener.shutdown()
            serving.join()


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False


def _carry(browser: socket.socket, execution: Execution) -> None:
    """Pass on what both sides send until the app closes its side, or the browser leaves."""

    def to_app() -> None:
        with suppress(OSError):
            while piece := browser.recv(_PIECE_BYTES):
                execution.connection.sendall(piece)
        with suppress(OSError):
            execution.connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=to_app, name="tunnel-up", daemon=True).start()
    with suppress(OSError):
        for piece in output_pieces(execution.connection):
            browser.sendall(piece)
    with suppress(OSError):
        browser.shutdown(socket.SHUT_RDWR)
