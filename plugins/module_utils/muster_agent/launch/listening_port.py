"""Whether a program listens on a TCP port, by Linux's list of sockets in a network namespace.

The list of listening sockets alone is requested of Linux by netlink (sock_diag(7)). `/proc/PID/net/tcp` has the same,
but each reading of it searches the table of all connections of the host: some milliseconds where memory is large.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.network_namespace import socket_in

if TYPE_CHECKING:
    from collections.abc import Iterator

_ANSWER_S = 5
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_ERROR, _DONE = 2, 3
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_LISTENING = 1 << 10  # TCP_LISTEN
_MOST_OF_AN_ANSWER = 64 << 10
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
# inet_diag_req_v2: family, protocol, extensions, padding, states, source port; then what is to be any.
_REQUEST = struct.Struct("=BBBxI2s46x")
_NUMBER = struct.Struct("=i")
_ALIGNMENT = 4
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_PROC = Path("/proc")
_TABLES = ("net/tcp", "net/tcp6")
_LOCAL, _STATE = 1, 3
_LISTEN = "0A"


class ListeningPort:
    """A TCP port, at any address, in the network namespace of a process. It is to be closed."""

    def __init__(self, pid: int, port: int, proc: Path = _PROC) -> None:
        self._pid = pid
        self._port = port
        self._proc = proc
        self._netlink: socket.socket | None = None
        try:
            self._netlink = socket_in(pid, socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
            self._netlink.settimeout(_ANSWER_S)
        except OSError:  # the process has ended, or Linux was built without it
            self.close()

    def close(self) -> None:
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None

    def is_open(self) -> bool:
        """Return whether a program listens on it."""
        if self._netlink is not None:
            try:
                return any(_is_listed(self._netlink, family, self._port) for family in _FAMILIES)
            except OSError:
                self.close()
        return self._is_in_tables()

    def _is_in_tables(self) -> bool:
        ending = f":{self._port:04X}"
        for table in _TABLES:
            try:
                rows = (self._proc / str(self._pid) / table).read_text("ascii").splitlines()[1:]
            except OSError:  # the process has ended, or the host has no IPv6
                continue
            columns = (row.split() for row in rows)
            if any(row[_STATE] == _LISTEN and row[_LOCAL].endswith(ending) for row in columns):
                return True
        return False


def _is_listed(netlink: socket.socket, family: int, port: int) -> bool:
    """Return whether Linux lists a listening socket of this family and port. Raises OSError where it lists nothing."""
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _LISTENING, port.to_bytes(2, "big"))
    netlink.send(_HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _DUMP, 0, 0) + request)
    found = False
    while True:
        for kind, payload in _messages(netlink.recv(_MOST_OF_AN_ANSWER)):
            if kind == _DONE:
                return found
            if kind == _ERROR:
                number = -_NUMBER.unpack_from(payload)[0]
                raise OSError(number, os.strerror(number))
            found = True


def _messages(answer: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the payload of each message."""
    at = 0
    while at < len(answer):
        length, kind, *_ = _HEADER.unpack_from(answer, at)
        yield kind, answer[at + _HEADER.size : at + length]
        at += -(-length // _ALIGNMENT) * _ALIGNMENT
