"""The web server's way to its broker: connections, requests and their answers."""

import pickle
import queue
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from muster.core.values.errors import MusterError
from muster.web.separation.operations import OPERATIONS, Credential, request_bytes
from muster.web.separation.wire import receive, receive_with_file, send


class NoBrokerError(MusterError):
    """The server's broker does not answer."""


class Line:
    """The way to the broker: connections that are made as they are needed, by any thread, and used again."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._connecting = threading.Lock()
        self._idle: queue.LifoQueue[socket.socket] = queue.LifoQueue()

    def request(
        self, operation: str, credential: Credential | None, arguments: Sequence[object] = (), **named: object
    ) -> Any:  # noqa: ANN401 - each operation's own
        """Return what the operation gives. Raises as it does, and NoBrokerError."""
        message = _request(operation, credential, arguments, named)
        try:
            connection = self._idle.get_nowait()
        except queue.Empty:
            connection = self._connected()
        try:
            send(connection, message)
            answer = receive(connection)
        except OSError as error:
            connection.close()
            raise NoBrokerError from error
        if answer is None:
            connection.close()
            raise NoBrokerError
        self._idle.put(connection)
        return value_of(answer)

    def open(
        self, operation: str, credential: Credential | None, arguments: Sequence[object] = (), **named: object
    ) -> tuple[socket.socket, Any, int | None]:
        """Return a connection for what the operation opens, what it gives, and the file that comes with that.

        Raises as it does, and NoBrokerError.
        """
        connection = self._connected()
        with ExitStack() as stack:
            stack.enter_context(connection)
            try:
                send(connection, _request(operation, credential, arguments, named))
                answer, descriptor = receive_with_file(connection)
            except OSError as error:
                raise NoBrokerError from error
            if answer is None:
                raise NoBrokerError
            opened = value_of(answer)
            stack.pop_all()
        return connection, opened, descriptor

    def _connected(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs, self._connecting:
            try:
                socket.send_fds(self._control, [b"+"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise NoBrokerError from error
        return ours


def _request(
    operation: str, credential: Credential | None, arguments: Sequence[object], named: Mapping[str, object]
) -> bytes:
    return request_bytes(operation, OPERATIONS[operation].encoded(arguments, named), credential)


def value_of(answer: bytes) -> Any:  # noqa: ANN401 - each operation's own
    """Return what an answer says. Raises the error that it says."""
    done, value = pickle.loads(answer)  # noqa: S301 - the broker is the one of us who is trusted
    if done:
        return value
    kind, arguments, held = value
    error: MusterError = kind.__new__(kind)
    error.args = arguments
    vars(error).update(held)
    raise error


def answer_to(connection: socket.socket, message: bytes) -> Any:  # noqa: ANN401 - each operation's own
    """Return the answer to a message about what is open. Raises as it says, and NoBrokerError."""
    try:
        send(connection, message)
        answer = receive(connection)
    except OSError as error:
        raise NoBrokerError from error
    if answer is None:
        raise NoBrokerError
    return value_of(answer)
