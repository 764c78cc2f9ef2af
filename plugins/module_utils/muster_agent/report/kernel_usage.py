"""What a kernel has used so far: by its control group's counters and its network's; null where nothing tells."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.kernel_cgroup import group_of, hierarchies

if TYPE_CHECKING:
    from ..engine.kernel_cgroup import Hierarchies, Place

_PROC = Path("/proc")
_LOOPBACK = "lo"
_RECEIVED, _SENT = 0, 8


def kernel_use(place: Place, pid: int, groups: Hierarchies | None = None, proc: Path = _PROC) -> dict[str, Any]:
    """Return the counters since the kernel's launch; `pid` is of a process in its container, 0 when it has ended.

    `at` is this host's clock in seconds since the epoch. The peak of memory includes files that the kernel cached.
    """
    groups = groups or hierarchies()
    memory, cpu = group_of(place, groups.memory), group_of(place, groups.cpu)
    received, sent = _traffic(pid, proc) if pid else (None, None)
    return {
        "at": time.time(),
        "cpu_seconds": _cpu_seconds(cpu, unified=groups.unified),
        "mem_bytes": _memory(memory, unified=groups.unified) if pid else None,
        "mem_peak_bytes": _number(memory, "memory.peak" if groups.unified else "memory.max_usage_in_bytes") or None,
        "net_rx_bytes": received,
        "net_tx_bytes": sent,
        "gpu_percent": None,
    }


def ran_out_of_memory(place: Place, groups: Hierarchies | None = None) -> bool:
    """Return whether Linux has killed a process of a kernel that runs, for lack of memory.

    The engine says so once the container's first program has ended, which in an interactive session it does not.
    """
    groups = groups or hierarchies()
    group = group_of(place, groups.memory)
    if groups.unified:
        return bool(_entry(group, "memory.events", "oom_kill"))
    # Without the unified hierarchy, a group does not count what happens in those below it.
    below = [path for path in group.iterdir() if path.is_dir()] if group else []
    return any(_entry(path, "memory.oom_control", "oom_kill") for path in below)


def _cpu_seconds(group: Path | None, *, unified: bool) -> float | None:
    if not unified:
        nanoseconds = _number(group, "cpuacct.usage")
        return None if nanoseconds is None else nanoseconds / 1e9
    microseconds = _entry(group, "cpu.stat", "usage_usec")
    return None if microseconds is None else microseconds / 1e6


def _memory(group: Path | None, *, unified: bool) -> int | None:
    """Return what is in use now, without files that could be dropped at once."""
    used = _number(group, "memory.current" if unified else "memory.usage_in_bytes")
    if used is None:
        return None
    cached = _entry(group, "memory.stat", "inactive_file" if unified else "total_inactive_file")
    return max(0, used - (cached or 0))


def _traffic(pid: int, proc: Path) -> tuple[int | None, int | None]:
    """Return bytes received and sent in the network namespace of a process, its loopback's left out."""
    try:
        lines = (proc / str(pid) / "net/dev").read_text("ascii").splitlines()[2:]
    except (OSError, ValueError):  # it has ended since
        return None, None
    counted = [line.split(":", 1)[1].split() for line in lines if line.split(":", 1)[0].strip() != _LOOPBACK]
    return sum(int(row[_RECEIVED]) for row in counted), sum(int(row[_SENT]) for row in counted)


def _number(group: Path | None, name: str) -> int | None:
    text = _text(group, name)
    return int(text) if text and text.strip().isdigit() else None


def _entry(group: Path | None, name: str, key: str) -> int | None:
    found = re.search(rf"^{key} (\d+)$", _text(group, name) or "", re.MULTILINE)
    return int(found.group(1)) if found else None


def _text(group: Path | None, name: str) -> str | None:
    if group is None:
        return None
    try:
        return (group / name).read_text("ascii")
    except OSError:  # removed since, or a kernel too old for this file
        return None
