"""The state that the processes on a shared GPU keep in common: a container's use, a GPU's compute lease."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from ..launch.tmpfs import ensure_own_tmpfs
from ..names import FGPU_ROOT, gpu_lease

if TYPE_CHECKING:
    from pathlib import Path

    from ..manifest import Kernel
    from ..names import ClusterPaths

_DIRECTORY_MODE = 0o755
# Whatever a container's user is. Each file is bound by itself, so nobody can replace it or put another beside it.
_FILE_MODE = 0o666


def is_needed(kernel: Kernel) -> bool:
    access = kernel.spec["gpu_access"]
    return bool(access and (access["usage"] or access["leases"]))


def ensure_root() -> None:
    # Tenants write these files, and could make them as long as they like.
    ensure_own_tmpfs(FGPU_ROOT, _DIRECTORY_MODE)


def make_state(paths: ClusterPaths, session_id: str, kernel: Kernel) -> None:
    """Make what a kernel's container is to share: its use begins at nothing, leases are there or are made."""
    access = kernel.spec["gpu_access"]
    if access["usage"]:
        usage = paths.kernel_usage(session_id, kernel.name)
        with suppress(FileNotFoundError):  # of a launch that was given up
            usage.unlink()
        _make_file(usage)
    for gpu_uuid in access["leases"]:
        _make_file(gpu_lease(gpu_uuid))


def _make_file(path: Path) -> None:
    path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _FILE_MODE)
    try:
        os.fchmod(descriptor, _FILE_MODE)
    finally:
        os.close(descriptor)
