"""The driver's errors (Xids) in the Linux kernel's log, which remembers them whether or not anybody listened."""

from __future__ import annotations

import os
import re
from pathlib import Path

LOG = Path("/dev/kmsg")
# Priority, sequence number, microseconds since the boot, flags; then the message.
_RECORD = re.compile(
    r"(\d{1,10}),(\d{1,18}),\d+,[^;]*;"
    r"NVRM: Xid \(PCI:([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-9A-Fa-f])?\): (\d{1,5}),"
)
_KERNEL = 0
_FACILITY_SHIFT = 3
_MOST_OF_A_RECORD = 8192
_MOST_BYTES = 64 << 20


def read_xids(log: Path = LOG) -> dict[str, dict[int, int]]:
    """Return by PCI address (`0000:3b:00.0`) the newest record's sequence number of each Xid. Raises OSError.

    What programs write into the log is left out: the Linux kernel marks that itself.
    """
    found: dict[str, dict[int, int]] = {}
    for record in _records(log):
        match = _RECORD.match(record)
        if match and int(match[1]) >> _FACILITY_SHIFT == _KERNEL:
            domain, place = match[3].lower().split(":", 1)
            of_gpu = found.setdefault(f"{int(domain, 16):04x}:{place}.0", {})
            number = int(match[4])
            of_gpu[number] = max(int(match[2]), of_gpu.get(number, 0))
    return found


def _records(log: Path) -> list[str]:
    """Return the records that are there now: the log gives one with each read, and then would wait for more."""
    descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    read = bytearray()
    try:
        while len(read) < _MOST_BYTES:
            try:
                piece = os.read(descriptor, _MOST_OF_A_RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:  # overwritten while it was read; the next read goes on with the oldest
                continue
            if not piece:
                break
            read += piece
    finally:
        os.close(descriptor)
    return read.decode("utf-8", "replace").splitlines()
