"""The one clock of a host that nobody sets."""

from __future__ import annotations

import time


def uptime_s() -> float:
    """Return the seconds since the host's boot, also those in which it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
