"""Mounts that the agent's modules make on a host beside those of the engine."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from .mount_table import Mount, listing, mounts

_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MS_READ_ONLY, _MS_REMOUNT = 1, 0x20
# The flags that a remount would take away unless it names them.
_KEPT = {"nosuid": 2, "nodev": 4, "noexec": 8}
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_libc = ctypes.CDLL(None, use_errno=True)


def bind(descriptor: int, target: Path) -> None:
    """Mount an open directory, and what is mounted below it, at another place. Raises OSError."""
    source = f"/proc/self/fd/{descriptor}"
    _mount(source, target, _MS_BIND | _MS_REC)
    _separate(target)


def make_read_only(target: Path) -> None:
    """Let nobody write by a place that was bound, nor by what is mounted below it. Raises OSError.

    An engine makes only the place itself read-only, unless it is asked by version 1.44 of its API or a newer one.
    """
    for mount in _mounts_below(target):
        kept = sum(flag for name, flag in _KEPT.items() if name in mount.flags)
        _mount(None, Path(mount.point), _MS_REMOUNT | _MS_BIND | _MS_READ_ONLY | kept)


def unmount_below(directory: Path) -> None:
    """Unmount everything at a directory and below it, without touching the mounted files. Raises OSError."""
    found = [mount.point for mount in _mounts_below(directory)]
    # All of them before the first is removed: a mount that is not yet private would remove its source's mounts too.
    for point in found:
        _separate(Path(point))
    for point in reversed(found):
        if _libc.umount2(os.fsencode(point), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
            _raise(point)


def remove_mount_points(directory: Path) -> None:
    """Unmount what is at a directory and below it, and remove the empty directories that are left. Raises OSError."""
    unmount_below(directory)
    # Never by shutil: if a mount is left, its content is a user's data.
    for place, _, _ in os.walk(directory, topdown=False):
        with suppress(FileNotFoundError):
            Path(place).rmdir()


def _mounts_below(directory: Path) -> list[Mount]:
    """Return the mounts at a directory and below it, the newest last."""
    found = mounts(listing(Path("/proc/self/mountinfo")))
    return [mount for mount in found if mount.point == str(directory) or mount.point.startswith(f"{directory}/")]


def _separate(point: Path) -> None:
    """Let neither mounts nor unmounts below this place reach the place that it was bound from, or come from there."""
    _mount(None, point, _MS_REC | _MS_PRIVATE)


def _mount(source: str | None, target: Path, flags: int) -> None:
    encoded = None if source is None else os.fsencode(source)
    if _libc.mount(encoded, os.fsencode(target), None, ctypes.c_ulong(flags), None) != 0:
        _raise(str(target))


def _raise(path: str) -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code), path)
