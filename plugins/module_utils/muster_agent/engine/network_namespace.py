"""Sockets in the network namespaces of containers."""

from __future__ import annotations

import ctypes
import os
import socket
from concurrent.futures import ThreadPoolExecutor

_CLONE_NEWNET = 0x40000000


def socket_in(pid: int, family: int, kind: int, protocol: int = 0) -> socket.socket:
    """Return a socket in the network namespace of a process. Raises OSError, also where the process has ended.

    A socket belongs to the network that its maker was in; which thread uses it makes no difference.
    """

    def make() -> socket.socket:
        space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(space, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(space)
        return socket.socket(family, kind, protocol)

    # In a thread of its own, which stays in that network until it ends.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()
