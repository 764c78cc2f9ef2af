"""Messages between the web server and its broker, over a pair of connected sockets.

A message is its length in four bytes, and then so many bytes. A file may come with a reply's length.
"""

import os
import socket
from collections.abc import Callable

MOST_REQUEST_BYTES = 32 << 20
# Of a file that is uploaded.
MOST_PIECE_BYTES = 1 << 20
_LENGTH_BYTES = 4
_MOST_BYTES = (1 << 8 * _LENGTH_BYTES) - 1


class MalformedError(Exception):
    """What the other side sent is no message of this protocol."""


def send(connection: socket.socket, message: bytes, descriptor: int | None = None) -> None:
    """Send a message, and a file with it. Raises OSError."""
    length = len(message).to_bytes(_LENGTH_BYTES)
    if descriptor is None:
        # At once: a reader may close its end after the last byte, and that of an empty message is its length's.
        connection.sendall(length + message)
        return
    socket.send_fds(connection, [length], [descriptor])
    connection.sendall(message)


def receive(connection: socket.socket, most_bytes: int = _MOST_BYTES) -> bytes | None:
    """Return the next message; None at the end, also at one within a message. Raises OSError and MalformedError."""
    return _received(connection.recv, most_bytes)


def receive_with_file(connection: socket.socket) -> tuple[bytes | None, int | None]:
    """Return the next message and the file that came with it. Raises OSError and MalformedError."""
    files: list[int] = []

    def part(size: int) -> bytes:
        data, descriptors, _, _ = socket.recv_fds(connection, size, 1)
        files.extend(descriptors)
        return data

    message = _received(part, _MOST_BYTES)
    for descriptor in files[1:] if message is not None else files:
        os.close(descriptor)
    return message, files[0] if files and message is not None else None


def _received(part: Callable[[int], bytes], most_bytes: int) -> bytes | None:
    length = _whole(part, _LENGTH_BYTES)
    if length is None:
        return None
    size = int.from_bytes(length)
    if size > most_bytes:
        raise MalformedError(f"a message of {size} bytes")
    return _whole(part, size)


def _whole(part: Callable[[int], bytes], size: int) -> bytes | None:
    content = bytearray()
    while len(content) < size:
        data = part(min(size - len(content), 1 << 20))
        if not data:
            return None
        content += data
    return bytes(content)
