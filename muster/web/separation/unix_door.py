"""The control node's own socket: the broker takes its connections, and the server speaks on them. ADR 21.

The broker reads from each connection who is there, as the Linux kernel says it, and hands the connection to the server
with a secret that stands for this user. It keeps the connection's file, so that the secret holds no longer than the
connection does, whatever the server says.
"""

import logging
import os
import select
import socket
import stat
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from muster.core.values.errors import BadInputError
from muster.service.identity.unix_callers import TooManyConnectionsError, UnixCallers

log = logging.getLogger("muster.broker")
_PEER = struct.Struct("3i")
_BACKLOG = 128
_MODE = 0o666
# With the last descriptor used up, a moment without new ones lets some end.
_PATIENCE_S = 0.2


def listening_socket(path: Path) -> socket.socket:
    """Return a socket at this path to which every user may connect. Raises BadInputError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        _check_directory(path.parent)
        _remove_what_ended(path)
        listener.bind(str(path))
        path.chmod(_MODE)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise BadInputError(
            f"--socket: {path} cannot be served: {error.strerror or error}; name another, such as /run/muster-api.sock"
        ) from None
    except BadInputError:
        listener.close()
        raise
    return listener


def _check_directory(directory: Path) -> None:
    """Refuse a directory in which others could put a socket in the place of ours. Raises BadInputError."""
    found = directory.stat()
    if found.st_uid not in {0, os.geteuid()} or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise BadInputError(
            f"--socket: others may write in {directory}; name a path in a directory that is yours alone to write"
        )


def _remove_what_ended(path: Path) -> None:
    """Remove a socket on which nobody listens any more. Raises BadInputError and OSError."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise BadInputError(f"--socket: {path} is no socket; name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise BadInputError(f"--socket: {path} is served by another process; end it, or name another path")


class UnixDoor:
    """The broker's side: takes connections until it is closed. `hand_over` is a socket to the server."""

    def __init__(self, listener: socket.socket, hand_over: socket.socket, callers: UnixCallers) -> None:
        self._listener = listener
        self._hand_over = hand_over
        self._callers = callers
        self._closed = threading.Event()
        self._ended = select.epoll()
        self._lock = threading.Lock()
        # By the number of the file that we keep.
        self._open: dict[int, tuple[socket.socket, str]] = {}

    def __enter__(self) -> Self:
        for run in (self._admit_all, self._forget_ended):
            threading.Thread(target=run, name="broker-door", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with suppress(OSError):
            Path(self._listener.getsockname()).unlink()
        # It wakes the thread that waits for the next one.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _admit_all(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                self._closed.wait(_PATIENCE_S)
                continue
            try:
                self._admit(connection)
            except OSError as error:
                connection.close()
                log.warning("a connection to the socket was not taken: %s", error)

    def _admit(self, connection: socket.socket) -> None:
        """Raises OSError."""
        _, uid, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        try:
            secret = self._callers.admit(uid)
        except TooManyConnectionsError:
            connection.close()
            return
        try:
            socket.send_fds(self._hand_over, [f"{uid} {secret}".encode()], [connection.fileno()])
        except OSError:
            self._callers.forget(secret)
            raise
        number = connection.fileno()
        with self._lock:
            self._open[number] = connection, secret
        try:
            # Of every registered file it is said when both sides are closed.
            self._ended.register(connection, 0)
        except OSError:
            # The server has it as well, and nobody would tell when it ends.
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            with self._lock:
                del self._open[number]
            self._callers.forget(secret)
            raise

    def _forget_ended(self) -> None:
        while True:
            for number, _ in self._ended.poll():
                self._forget(number)

    def _forget(self, number: int) -> None:
        with self._lock:
            connection, secret = self._open.pop(number)
        self._callers.forget(secret)
        self._ended.unregister(number)
        connection.close()
