"""The state that the processes on a shared GPU keep in common: a container's use, a GPU's compute lease."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from ..host_mounts import unmount_below
from ..launch.tmpfs import ensure_own_tmpfs
from ..names import FGPU_ROOT, gpu_lease

if TYPE_CHECKING:
    from pathlib import Path

    from ..manifest import Kernel
    from ..names import ClusterPaths

_DIRECTORY_MODE = 0o755
# For any user of a container. Each file is bound by itself, so nobody can replace it or put another beside it.
_FILE_MODE = 0o666
# Who makes a file longer fills the file system that it alone is on. Each has room for its table and little more
# (native/lease_table.h, native/usage.c).
_LEASE_SIZE = "64k"
_USAGE_SIZE = "1m"


def is_needed(kernel: Kernel) -> bool:
    access = kernel.spec["gpu_access"]
    return bool(access and (access["usage"] or access["leases"]))


def ensure_root() -> None:
    ensure_own_tmpfs(FGPU_ROOT, _DIRECTORY_MODE)


def make_state(paths: ClusterPaths, session_id: str, kernel: Kernel) -> None:
    """Make what a kernel's container is to share: its use begins at nothing, leases are there or are made."""
    access = kernel.spec["gpu_access"]
    if access["usage"]:
        usage = paths.kernel_usage(session_id, kernel.name)
        unmount_below(usage.parent)  # of a launch that was given up
        _make_file(usage, _USAGE_SIZE)
    for gpu_uuid in access["leases"]:
        _make_file(gpu_lease(gpu_uuid), _LEASE_SIZE)


def remove_state(paths: ClusterPaths, session_id: str, kernel_name: str = "") -> None:
    """Remove what the container of a kernel shared, or all containers of a session, but for leases. Raises OSError."""
    directory = paths.fgpu / session_id / kernel_name
    unmount_below(directory)
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)


def _make_file(path: Path, size: str) -> None:
    """Make a file that tenants write, on a file system of its own."""
    ensure_own_tmpfs(path.parent, _DIRECTORY_MODE, size)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _FILE_MODE)
    try:
        os.fchmod(descriptor, _FILE_MODE)
    finally:
        os.close(descriptor)
