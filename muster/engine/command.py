"""A command in a kernel's container: its output, its exit code, and a terminal where the user has one."""

import os
import select
import signal
import socket
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from muster.engine.execution import Programs
from muster.engine.frames import frames


def run_in(kernel: Programs, command: Sequence[str], *, terminal: bool, reads_input: bool = True) -> int:
    """Run the command with this process' standard input, output and error, and return its exit code.

    Without `reads_input` its standard input is empty, and open for as long as this process runs it.
    """
    with kernel.start(command, terminal=terminal) as execution:
        if terminal:
            with _raw_terminal(), _resizing(execution.resize):
                _pump(execution.connection, terminal=True, reads_input=reads_input)
        else:
            _pump(execution.connection, terminal=False, reads_input=reads_input)
        return execution.exit_code()


def _pump(connection: socket.socket, *, terminal: bool, reads_input: bool) -> None:
    """Pass standard input to the command and its output to ours, until it ends."""
    pieces = frames(connection.recv, terminal=terminal)
    sources: list[socket.socket | int] = [connection, *([sys.stdin.fileno()] if reads_input else [])]
    while True:
        ready, _, _ = select.select(sources, [], [])
        if connection in ready:
            piece = next(pieces, None)
            if piece is None:
                return
            _write(*piece)
        elif ready:
            typed = os.read(sys.stdin.fileno(), 65536)
            if typed:
                connection.sendall(typed)
            else:
                sources.remove(sys.stdin.fileno())
                connection.shutdown(socket.SHUT_WR)


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
        resize(columns, rows)

    changed()
    before = signal.signal(signal.SIGWINCH, changed)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
