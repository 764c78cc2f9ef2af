"""How long a process of this host has run, to compare it with the files that it was started with."""

from __future__ import annotations

import os
import time
from pathlib import Path

_PROC = Path("/proc")


def process_started_at(pid: int) -> float | None:
    """Return when a process was started, in seconds since the epoch; None if there is none."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # proc(5): the name, in parentheses, may hold blanks itself. The twentieth word after it is in ticks since the boot.
    after_boot_s = int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    # Not by the time of the boot in /proc/stat, which is in whole seconds.
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + after_boot_s


def pid_in(file: str) -> int | None:
    """Return the process that a pid file names; None if it names none."""
    try:
        return int(Path(file).read_text())
    except (OSError, ValueError):
        return None
