"""HTTP over the control node's Unix socket: each request has a connection, whose other end is checked first."""

import http.client
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import httpx

_PEER = struct.Struct("3i")
_PIECE_BYTES = 1 << 16


def connected(path: Path, timeout_s: float | None) -> socket.socket:
    """Return a connection to the server at this path. Raises httpx.ConnectError.

    Anybody may make a socket, so what is sent goes only to one that root or this user listens on.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(path))
        _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    except OSError as error:
        connection.close()
        raise httpx.ConnectError(error.strerror or str(error)) from None
    if uid not in {0, os.geteuid()}:
        connection.close()
        raise httpx.ConnectError(f"uid {uid} listens there, who is neither root nor you; nothing was sent")
    return connection


class UnixTransport(httpx.BaseTransport):
    """A transport to the server at a Unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return the answer. Raises httpx.TransportError."""
        timeouts = request.extensions.get("timeout", {})
        connection = http.client.HTTPConnection("localhost")
        connection.sock = connected(self._path, timeouts.get("connect"))
        connection.sock.settimeout(timeouts.get("read"))
        target = request.url.raw_path.decode("ascii")
        try:
            connection.request(request.method, target, request.read(), dict(request.headers))
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _failed(error) from None
        return httpx.Response(answer.status, headers=answer.getheaders(), stream=_Pieces(connection, answer))


class _Pieces(httpx.SyncByteStream):
    """An answer as it comes."""

    def __init__(self, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._answer = answer

    def __iter__(self) -> Iterator[bytes]:
        try:
            while piece := self._answer.read1(_PIECE_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise _failed(error) from None

    def close(self) -> None:
        self._connection.close()


def _failed(error: Exception) -> httpx.TransportError:
    if isinstance(error, TimeoutError):
        return httpx.ReadTimeout("it did not answer in time")
    return httpx.ReadError(str(error) or type(error).__name__)
