"""The broker's answers, and its end of connections that stay open."""

import pickle
import socket
from contextlib import suppress

from muster.core.values.errors import MusterError
from muster.web.separation.wire import MalformedError, receive, send


class LeftError(Exception):
    """The server has closed its end, or sent what it may not here."""


def done(value: object) -> bytes:
    return pickle.dumps((True, value))


def refused(error: MusterError) -> bytes:
    """Return an error as it is sent: by its class and what it holds, since not every class is made of its text."""
    return pickle.dumps((False, (type(error), error.args, vars(error))))


def received(connection: socket.socket, most_bytes: int) -> bytes | None:
    """Raises LeftError."""
    try:
        return receive(connection, most_bytes)
    except (OSError, MalformedError) as error:
        raise LeftError from error


def send_or_leave(connection: socket.socket, message: bytes, descriptor: int | None = None) -> None:
    """Raises LeftError."""
    try:
        send(connection, message, descriptor)
    except OSError as error:
        raise LeftError from error


def shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
