"""Whether a kernel resolves the names of its gang's others: over an overlay, hosts learn of them by gossip."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

_RESOLVER = ("127.0.0.11", 53)
_ANSWER_S = 0.5
_POLL_S = 0.05
_CLONE_NEWNET = 0x40000000
_RECURSION_DESIRED, _A, _IN = 0x0100, 1, 1
_HEADER = struct.Struct(">6H")
_LONGEST_LABEL = 63
_PEERS = "BACKENDAI_CLUSTER_HOSTS="


def peers_of(container: dict[str, Any]) -> list[str]:
    """Return the names of the kernels of a container's gang, by its environment."""
    entries = [entry for entry in container["Config"]["Env"] or [] if entry.startswith(_PEERS)]
    return [name for entry in entries for name in entry[len(_PEERS) :].split(",") if _is_label(name)]


def _is_label(name: str) -> bool:
    return name.isascii() and 0 < len(name) <= _LONGEST_LABEL


def await_names(pid: int, names: Collection[str], patience_s: float) -> set[str]:
    """Wait until the engine's resolver knows the names in the network of a process; return those it does not know."""
    missing = set(names)

    # A thread of its own, since it stays in that network until it ends.
    def ask() -> None:
        with suppress(OSError), _socket_in(pid) as resolver:
            give_up_at = time.monotonic() + patience_s
            while True:
                missing.difference_update([name for name in sorted(missing) if _is_known(resolver, name)])
                if not missing or time.monotonic() > give_up_at:
                    return
                time.sleep(_POLL_S)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join()
    return missing


def _socket_in(pid: int) -> socket.socket:
    """Return a socket in the network of a process, to the resolver there; the calling thread goes there too."""
    space = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(space, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(space)
    resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    resolver.settimeout(_ANSWER_S)
    resolver.connect(_RESOLVER)
    return resolver


def _is_known(resolver: socket.socket, name: str) -> bool:
    """Return whether the answer to a query of RFC 1035 has an address of the name."""
    number = int.from_bytes(os.urandom(2), "big")
    label = name.encode("ascii")
    question = struct.pack("B", len(label)) + label + b"\0" + struct.pack(">HH", _A, _IN)
    try:
        resolver.send(_HEADER.pack(number, _RECURSION_DESIRED, 1, 0, 0, 0) + question)
        while True:
            answer = resolver.recv(4096)
            if len(answer) < _HEADER.size:
                return False
            answered, flags, _, answers, _, _ = _HEADER.unpack_from(answer)
            if answered == number:
                return flags & 0xF == 0 and answers > 0
    except OSError:  # no answer in time, or no resolver yet
        return False
