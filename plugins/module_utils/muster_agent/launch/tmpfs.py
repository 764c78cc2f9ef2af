"""Directories that no disk ever sees."""

from __future__ import annotations

import fcntl
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ..mount_table import listing, mounts
from ..names import DISK_COUNTS, STATE_ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

_IN_MEMORY = {"tmpfs", "ramfs"}
_SIZE = "64m"
# Of the host's memory, as distributions give /run.
_SIZE_OF_FILES = "10%"
_NO_PRIVILEGES = "nosuid,nodev"
_OPTIONS = f"{_NO_PRIVILEGES},noexec"


class TmpfsError(OSError):
    """The error of missing space in memory."""


def ensure_in_memory(directory: Path, mode: int) -> None:
    """Make a directory that lies in memory: on the file system that is there, or else on one of its own.

    Kernels start scripts there. Most distributions' /run is mounted `noexec`, which a container keeps where its engine
    remaps ids or makes mounts read-only recursively. A directory with more in it than counts of disks, which are made
    anew, stays on the file system that it is on.
    """
    _make(directory, mode)
    with _one_at_a_time():
        if file_system_of(str(directory), listing(Path("/proc/self/mountinfo"))) not in _IN_MEMORY:
            _mount(directory, mode, _SIZE_OF_FILES, _NO_PRIVILEGES)
        elif _forbids_programs(directory):
            if directory.is_mount():
                # As earlier versions mounted it.
                _mount(directory, mode, _SIZE_OF_FILES, f"remount,exec,{_NO_PRIVILEGES}")
            elif _is_unused(directory):
                _mount(directory, mode, _SIZE_OF_FILES, _NO_PRIVILEGES)


def ensure_own_tmpfs(directory: Path, mode: int, size: str = _SIZE) -> None:
    """Make a directory that is a file system in memory of its own, so that who fills it fills nothing else."""
    _make(directory, mode)
    with _one_at_a_time():
        if not directory.is_mount():
            _mount(directory, mode, size, _OPTIONS)


def file_system_of(path: str, mountinfo: str) -> str:
    """Return the type of the file system that holds a path."""
    best, kind = -1, ""
    for mount in mounts(mountinfo):
        holds = path == mount.point or path.startswith(mount.point.rstrip("/") + "/")
        if holds and len(mount.point) >= best:
            best, kind = len(mount.point), mount.kind
    return kind


def _forbids_programs(directory: Path) -> bool:
    return bool(os.statvfs(directory).f_flag & os.ST_NOEXEC)


def _is_unused(directory: Path) -> bool:
    return {path.name for path in directory.iterdir()} <= {DISK_COUNTS.name}


def _make(directory: Path, mode: int) -> None:
    directory.mkdir(mode=mode, parents=True, exist_ok=True)
    directory.chmod(mode)


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold a lock for all clusters on this host: the second of two mounts at one place would hide the first."""
    descriptor = os.open(STATE_ROOT, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _mount(directory: Path, mode: int, size: str, options: str) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", f"mode={mode:04o},size={size},{options}", directory.name, str(directory)]
    done = subprocess.run(mount, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise TmpfsError(f"no tmpfs can be mounted at {directory}: {' '.join(done.stderr.split())}")
