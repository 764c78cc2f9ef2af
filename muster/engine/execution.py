"""A program that runs in a kernel's container: its input and output, its terminal, its exit code."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol, cast

from muster.engine.frames import OUTPUT, Read, frames

if TYPE_CHECKING:  # the Docker SDK loads slowly
    from docker.models.containers import Container

_PIECE_BYTES = 1 << 16


class Execution(Protocol):
    """A program, until the other side of `connection` closes it.

    What is written to the connection is its input, to the end that a shutdown makes. What is read is its output: with a
    terminal as it is, otherwise in the engine's frames, which tell its output from its errors.
    """

    @property
    def connection(self) -> socket.socket: ...

    def resize(self, columns: int, rows: int) -> None: ...

    def exit_code(self) -> int:
        """Return the exit code of a program that has closed its output."""
        ...


class Programs(Protocol):
    """What starts programs in one kernel."""

    def start(self, command: Sequence[str], *, terminal: bool = False) -> AbstractContextManager[Execution]: ...


class _EngineExecution:
    """A program by the engine that runs the container."""

    def __init__(self, container: "Container", execution: str, connection: socket.socket) -> None:
        if container.client is None:
            raise ValueError("the container was not made by a client")
        self._api = container.client.api
        self._execution = execution
        self.connection = connection

    def resize(self, columns: int, rows: int) -> None:
        """Change its terminal's size, unless it has ended."""
        from muster.engine.agent_engine import ENGINE_ERRORS  # noqa: PLC0415 - the Docker SDK loads slowly

        with suppress(*ENGINE_ERRORS):
            self._api.exec_resize(self._execution, rows, columns)

    def exit_code(self) -> int:
        return int(self._api.exec_inspect(self._execution)["ExitCode"])


class ContainerPrograms:
    """Programs of a container."""

    def __init__(self, container: "Container") -> None:
        self._container = container

    @contextmanager
    def start(self, command: Sequence[str], *, terminal: bool = False) -> Iterator[Execution]:
        if self._container.client is None:
            raise ValueError("the container was not made by a client")
        api = self._container.client.api
        execution = api.exec_create(self._container.id, list(command), stdin=True, tty=terminal)["Id"]
        stream = api.exec_start(execution, tty=terminal, socket=True)
        try:
            with _whole(stream) as connection:
                yield _EngineExecution(self._container, execution, connection)
        finally:
            _close(stream)


def _close(stream: Any) -> None:  # noqa: ANN401 - the SDK's
    """Close the connection of an exec, and the SDK's answer that holds it as well.

    From Python 3.13 on, an answer whose stream was closed below it fails loudly when it is garbage: its last act is to
    flush that.
    """
    response = getattr(stream, "_response", None)
    if response is not None:
        response.close()
    stream.close()


@contextmanager
def _whole(stream: Any) -> Iterator[socket.socket]:  # noqa: ANN401 - the SDK's
    """Yield the connection of an exec that the SDK has started, from the first byte on that the program writes.

    The SDK gives the bare connection, without what its reader of the answer's head has read beyond that: on a busy
    machine, that is the beginning of the output.
    """
    connection = cast("socket.socket", getattr(stream, "_sock", stream))
    ahead = _read_ahead(stream, connection)
    # The SDK's patience is for answers: a program may say nothing for days, or read nothing.
    connection.settimeout(None)
    if not ahead:
        try:
            yield connection
        finally:
            # The SDK has it open as well, until the stream is closed.
            _shut(connection)
        return
    ours, theirs = socket.socketpair()
    ways = ((connection, ours, ahead), (ours, connection, b""))
    threads = [threading.Thread(target=_pass_on, args=way, name="program", daemon=True) for way in ways]
    with ours, theirs:
        for thread in threads:
            thread.start()
        try:
            yield theirs
        finally:
            for one in (ours, connection):
                _shut(one)
            for thread in threads:
                thread.join()


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _read_ahead(stream: Any, connection: socket.socket) -> bytes:  # noqa: ANN401 - the SDK's
    """Return what was read of the connection, and is kept by nobody but the reader of its head."""
    # The SDK leaves it on what it gives, where that takes it.
    response = getattr(stream, "_response", None)
    if response is None:
        return b""
    reader = response.raw._fp.fp  # noqa: SLF001 - as the SDK gets at the connection
    # Where nothing is kept, it would read on, and wait for that.
    connection.setblocking(False)
    return cast("bytes", reader.peek())


def _pass_on(source: socket.socket, target: socket.socket, first: bytes) -> None:
    """Pass on what comes, after `first`, up to its end."""
    with suppress(OSError):
        target.sendall(first)
        while piece := source.recv(_PIECE_BYTES):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def output_pieces(connection: socket.socket) -> Iterator[bytes]:
    """Yield what a program without a terminal writes to its output, without its errors. Raises OSError."""
    return _output(connection.recv)


def _output(read: Read) -> Iterator[bytes]:
    return (piece for descriptor, piece in frames(read) if descriptor == OUTPUT)


def output_of(container: "Container", command: Sequence[str], *, most_bytes: int, patience_s: float) -> bytes | None:
    """Return what a program writes to its output in a container; None where it fails, or writes more than that.

    A kernel's user may stop any program there, and its engine may send anything. Raises TimeoutError where it has not
    ended in time, and OSError.
    """
    deadline = time.monotonic() + patience_s
    received = bytearray()
    with ContainerPrograms(container).start(command) as execution:
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            execution.connection.settimeout(left_s)
            piece = execution.connection.recv(most_bytes)
            if not piece:
                break
            received += piece
            if len(received) > most_bytes:
                return None
        return b"".join(_output(BytesIO(received).read)) if execution.exit_code() == 0 else None
