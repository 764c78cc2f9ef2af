"""Connections of this machine's Unix users. The broker hands them to the server, with what it knows them by. ADR 21."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.requests import HTTPConnection

_SECRET, _UID = "muster.connection", "muster.uid"
_MOST_WORD_BYTES = 256


def connection_secret(connection: HTTPConnection) -> str | None:
    """Return what the broker knows the connection by; None for one that came by a port.

    The server alone writes a connection's state: nothing that a client sends gets there.
    """
    secret: str | None = connection.scope.get("state", {}).get(_SECRET)
    return secret


def unix_origin(scope: Mapping[str, Any]) -> str | None:
    """Return where a Unix user's request came from, for the audit log."""
    uid = scope.get("state", {}).get(_UID)
    return None if uid is None else f"uid {uid}"


class UnixConnections:
    """The connections that come by the door, each served by a protocol that is made with its state."""

    def __init__(self, door: socket.socket, make_protocol: Callable[[dict[str, Any]], asyncio.Protocol]) -> None:
        self._door = door
        self._make_protocol = make_protocol
        self._beginning: set[asyncio.Task[Any]] = set()

    def open(self) -> None:
        """Take connections in the running loop for as long as that runs."""
        self._door.setblocking(False)
        asyncio.get_running_loop().add_reader(self._door, self._take)

    def _take(self) -> None:
        try:
            word, descriptors, _, _ = socket.recv_fds(self._door, _MOST_WORD_BYTES, 1)
        except BlockingIOError:
            return
        loop = asyncio.get_running_loop()
        if not word:
            # The broker has ended, and this process ends as well.
            loop.remove_reader(self._door)
            return
        uid, _, secret = word.decode("ascii").partition(" ")
        state = {_SECRET: secret, _UID: uid}
        for descriptor in descriptors:
            connection = _SharedConnection(fileno=descriptor)
            connection.setblocking(False)
            beginning = loop.create_task(loop.connect_accepted_socket(lambda: self._make_protocol(state), connection))
            self._beginning.add(beginning)
            beginning.add_done_callback(self._beginning.discard)


class _SharedConnection(socket.socket):
    """A connection whose file the broker keeps as well: the other side sees its end by a shutdown only."""

    def close(self) -> None:
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)
        super().close()
