"""A command in a kernel's container: its output, its exit code, and a terminal where the user has one."""

import os
import select
import signal
import socket
import struct
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from docker.models.containers import Container

_HEADER = struct.Struct(">BxxxL")


def run_in(container: Container, command: Sequence[str], *, terminal: bool) -> int:
    """The command's exit code; standard input, output and error are those of this process."""
    if container.client is None:
        raise ValueError("the container was not made by a client")
    api = container.client.api
    execution = api.exec_create(container.id, list(command), stdin=True, tty=terminal)["Id"]
    stream = api.exec_start(execution, tty=terminal, socket=True)
    connection = cast("socket.socket", getattr(stream, "_sock", stream))
    if terminal:
        with _raw_terminal(), _resizing(lambda rows, columns: api.exec_resize(execution, rows, columns)):
            _pump(connection, framed=False)
    else:
        _pump(connection, framed=True)
    return int(api.exec_inspect(execution)["ExitCode"])


def _pump(connection: socket.socket, *, framed: bool) -> None:
    frames = Frames() if framed else None
    sources: list[socket.socket | int] = [connection, sys.stdin.fileno()]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if connection in ready:
            data = connection.recv(65536)
            if not data:
                return
            for descriptor, chunk in frames.feed(data) if frames else [(1, data)]:
                _write(descriptor, chunk)
        elif ready:
            typed = os.read(sys.stdin.fileno(), 65536)
            if typed:
                connection.sendall(typed)
            else:
                sources.remove(sys.stdin.fileno())
                connection.shutdown(socket.SHUT_WR)


class Frames:
    """The engine's framing of two output streams in one: a byte for the stream, four for the length."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        self._buffer += data
        while len(self._buffer) >= _HEADER.size:
            descriptor, length = _HEADER.unpack_from(self._buffer)
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return
            yield descriptor, self._buffer[_HEADER.size : end]
            self._buffer = self._buffer[end:]


def _write(descriptor: int, chunk: bytes) -> None:
    while chunk:
        chunk = chunk[os.write(descriptor, chunk) :]


@contextmanager
def _raw_terminal() -> Iterator[None]:
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _resizing(resize: Callable[[int, int], object]) -> Iterator[None]:
    def changed(*_: object) -> None:
        columns, rows = os.get_terminal_size(sys.stdin.fileno())
        resize(rows, columns)

    changed()
    before = signal.signal(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
