"""Whether a kernel resolves the names of its gang's others: over an overlay, hosts learn of them by gossip."""

from __future__ import annotations

import os
import socket
import struct
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..engine.network_namespace import socket_in

if TYPE_CHECKING:
    from collections.abc import Collection

_RESOLVER = ("127.0.0.11", 53)
_ANSWER_S = 0.5
_POLL_S = 0.05
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
    with suppress(OSError), socket_in(pid, socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.connect(_RESOLVER)
        give_up_at = time.monotonic() + patience_s
        while True:
            missing.difference_update([name for name in sorted(missing) if _is_known(resolver, name)])
            if not missing or time.monotonic() > give_up_at:
                break
            time.sleep(_POLL_S)
    return missing


def _is_known(resolver: socket.socket, name: str) -> bool:
    """Return whether the answer to a query of RFC 1035 has an address of the name.

    A program in that network may send any number of others in the resolver's name.
    """
    number = int.from_bytes(os.urandom(2), "big")
    label = name.encode("ascii")
    question = struct.pack("B", len(label)) + label + b"\0" + struct.pack(">HH", _A, _IN)
    try:
        resolver.send(_HEADER.pack(number, _RECURSION_DESIRED, 1, 0, 0, 0) + question)
        give_up_at = time.monotonic() + _ANSWER_S
        while (left_s := give_up_at - time.monotonic()) > 0:
            resolver.settimeout(left_s)
            answer = resolver.recv(4096)
            if len(answer) < _HEADER.size:
                return False
            answered, flags, _, answers, _, _ = _HEADER.unpack_from(answer)
            if answered == number:
                return flags & 0xF == 0 and answers > 0
    except OSError:  # no answer in time, or no resolver yet
        pass
    return False
