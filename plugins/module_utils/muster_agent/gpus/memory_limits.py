"""The driver's own limits of GPU memory, one for each control group of version 2 (NVML 13.5).

Unlike our libraries, no program gets around them. They are used beside these, where the driver has them.
"""

from __future__ import annotations

import ctypes
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..mount_table import fields, listing
from .gpu_report import GpuReading
from .nvml_library import Nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_GET, _SET = "nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"
_NONE = (1 << 64) - 1
_PROC = Path("/proc")


class _Limits(ctypes.Structure):
    """Both functions' structure: the one that sets has no last field, and does not look at it."""

    _fields_ = (
        ("nameSpace", ctypes.c_char_p),
        ("softLimit", ctypes.c_ulonglong),
        ("hardLimit", ctypes.c_ulonglong),
        ("currentUsed", ctypes.c_ulonglong),
    )


class Share(NamedTuple):
    """A container's share of a GPU, and the directory of its control group."""

    container_id: str
    uuid: str
    mem_bytes: int
    group: str


def shares_of(containers: Iterable[dict[str, Any]], proc: Path = _PROC) -> list[Share]:
    """Return the capped shares of containers, each `{"container_id", "pid", "gpus"}`, with a group of their own."""
    found = []
    for container in containers:
        capped = [gpu for gpu in container["gpus"] if gpu["mem_bytes"]]
        group = _group_of(container["pid"], container["container_id"], proc) if capped and container["pid"] else None
        if group:
            found += [Share(container["container_id"], gpu["uuid"], gpu["mem_bytes"], group) for gpu in capped]
    return found


def enforce(shares: list[Share], warn: Callable[[str], None]) -> None:
    """Give each share's control group its limit, if the driver has such limits. `warn` is called with what failed."""
    _ask(shares, warn, change=True)


def enforced(shares: list[Share], warn: Callable[[str], None]) -> dict[tuple[str, str], int]:
    """Return the driver's limits in bytes by container's id and GPU; shares without one are left out."""
    limits = _ask(shares, warn, change=False)
    return {(share.container_id, share.uuid): limit for share, limit in zip(shares, limits) if limit is not None}


def _ask(shares: list[Share], warn: Callable[[str], None], *, change: bool) -> list[int | None]:
    if not shares:
        return []
    answer = GpuReading(read=partial(_limits, shares, change=change)).answer(warn)
    if answer is None:
        return []
    limits, troubles = answer
    for trouble in troubles:
        warn(trouble)
    return limits


def _limits(shares: list[Share], *, change: bool) -> tuple[list[int | None], list[str]]:
    """Return the limits, and what went wrong; none if the driver has no such function, or there is no driver."""
    limits: list[int | None] = [None] * len(shares)
    troubles: list[str] = []
    try:
        nvml = Nvml()
    except OSError:
        return limits, troubles
    try:
        if hasattr(nvml.library, _GET):
            for place, share in enumerate(shares):
                limits[place] = _limit(nvml, share, troubles, change=change)
    finally:
        nvml.close()
    return limits, troubles


def _limit(nvml: Nvml, share: Share, troubles: list[str], *, change: bool) -> int | None:
    uuid, group = share.uuid.encode(), share.group.encode()
    gpu = ctypes.c_void_p()
    if nvml.status("nvmlDeviceGetHandleByUUID", uuid, ctypes.byref(gpu)) != 0:
        return None
    limit = _read(nvml, gpu, group)
    if change and limit != share.mem_bytes:
        # No soft limit: the driver would reserve that in the groups above too, and keep it there after the container.
        desired = _Limits(group, 0, share.mem_bytes, 0)
        status = nvml.status(_SET, gpu, ctypes.byref(desired))
        if status != 0:
            troubles.append(f"the driver refuses a memory limit on {share.uuid}: {nvml.reason(status)}")
        limit = _read(nvml, gpu, group)
    return limit


def _read(nvml: Nvml, gpu: ctypes.c_void_p, group: bytes) -> int | None:
    found = _Limits(group, 0, _NONE, 0)
    if nvml.status(_GET, gpu, ctypes.byref(found)) != 0 or found.hardLimit == _NONE:
        return None
    return found.hardLimit


def _group_of(pid: int, container_id: str, proc: Path) -> str | None:
    """Return the directory of a container's own control group of version 2, or None."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text("utf-8", "surrogateescape").splitlines()
        mounts = fields(listing(proc / "self/mounts"))
    except (FileNotFoundError, ProcessLookupError):  # it has ended since
        return None
    path = next((line.partition("::")[2] for line in groups if line.startswith("0::")), "")
    mount = next((point for _, point, kind, *_ in mounts if kind == "cgroup2"), None)
    if mount is None or container_id not in path:
        return None
    directory = Path(mount, path.lstrip("/"))
    return str(directory) if directory.is_dir() else None
