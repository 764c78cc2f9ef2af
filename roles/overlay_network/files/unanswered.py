#!/usr/bin/env python3
"""unanswered.py PORT PATIENCE_S [ADDRESS …]: print as JSON the addresses at which no host takes a TCP connection.

They are tried at once. One that refuses is tried again for PATIENCE_S, since its engine may just be joining the swarm.
Written for Python 3.9.
"""

from __future__ import annotations

import errno
import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor


def knock(address: str, port: int, patience_s: float) -> int | None:
    """Return 0 if a connection was taken, else the error's number; None if there was no answer."""
    try:
        with socket.create_connection((address, port), timeout=patience_s):
            return 0
    except OSError as error:
        return error.errno


def answers(address: str, port: int, patience_s: float) -> bool:
    end = time.monotonic() + patience_s
    while (left := end - time.monotonic()) > 0:
        outcome = knock(address, port, left)
        if outcome != errno.ECONNREFUSED:
            return outcome == 0
        time.sleep(min(0.2, left))
    return False


def main(port: str, patience_s: str, *addresses: str) -> None:
    with ThreadPoolExecutor(max_workers=max(1, len(addresses))) as pool:
        found = list(pool.map(lambda address: answers(address, int(port), float(patience_s)), addresses))
    json.dump([address for address, answered in zip(addresses, found) if not answered], sys.stdout)


main(*sys.argv[1:])
