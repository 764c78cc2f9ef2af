"""Project quotas of XFS and ext4, by quotactl(2) and ioctl_xfs_fsgetxattr(2): a folder's limit, and how much it holds.

Measured by the kernel, they cost nothing to read. Other file systems have none, and neither have those mounted without
`prjquota`.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from pathlib import Path
from typing import NamedTuple

from ..mount_table import listing, mounts

_MOUNTS = Path("/proc/self/mountinfo")
_WITH_PROJECTS = {"ext4", "xfs"}
_LOCAL = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
# linux/fs.h: struct fsxattr is five numbers (the fourth is the project) and eight bytes of padding.
_FSGETXATTR = 0x801C581F
_FSSETXATTR = 0x401C5820
_FSXATTR = struct.Struct("=5I8x")
_INHERITED = 0x200
# linux/quota.h and linux/dqblk_xfs.h.
_OF_PROJECTS = 2
_GET_QUOTA = 0x800007
_SET_QUOTA = 0x800008
_GET_STATE = 0x5805
_DQBLK = struct.Struct("=8QI4x")
_BLOCK_LIMITS = 1
_BLOCK_BYTES = 1024
_STATE_BYTES = 256
_COUNTED, _ENFORCED = 1 << 4, 1 << 5
_NO_QUOTA = "not enforced here"


class FileSystem(NamedTuple):
    """A file system under a directory; `source` is its block device, if it has one."""

    kind: str
    source: str


class Counted(NamedTuple):
    used_bytes: int
    files: int


def file_system(descriptor: int) -> FileSystem:
    """Return the file system of an open directory; both parts are empty where the kernel does not list it."""
    device = os.fstat(descriptor).st_dev
    return _listed(listing(_MOUNTS), f"{os.major(device)}:{os.minor(device)}")


def shared_from(system: FileSystem) -> str | None:
    """Return the server and path of a network file system; None for a file system of the host."""
    return None if system.kind in _LOCAL else f"{system.kind} {system.source}"


def limit(descriptor: int, number: int, quota_bytes: int | None) -> str:
    """Count a folder for a project of its own and limit it; return why that limits nothing, or an empty text.

    Where the file system cannot count, nothing is done.
    """
    system = file_system(descriptor)
    state = _state(system)
    if not state & _COUNTED:
        return obstacle(system, state)
    _join(descriptor, number)
    blocks = _blocks(quota_bytes)
    _quotactl(_SET_QUOTA, system.source, number, _DQBLK.pack(blocks, blocks, 0, 0, 0, 0, 0, 0, _BLOCK_LIMITS))
    return obstacle(system, state)


def limited_to(descriptor: int, number: int) -> str | None:
    """Return the limit of a folder in words, as `in_words` says it; None where the file system cannot count."""
    system = file_system(descriptor)
    if not _state(system) & _COUNTED:
        return None
    flags, _, _, project, _ = _FSXATTR.unpack(fcntl.ioctl(descriptor, _FSGETXATTR, bytes(_FSXATTR.size)))
    if project != number or not flags & _INHERITED:
        return "of no project"
    blocks = _DQBLK.unpack(_quotactl(_GET_QUOTA, system.source, number, bytes(_DQBLK.size)))[0]
    return in_words(blocks * _BLOCK_BYTES)


def in_words(quota_bytes: int | None) -> str:
    """Return a limit as the kernel would keep it, in whole blocks."""
    return f"{_blocks(quota_bytes) * _BLOCK_BYTES} bytes" if quota_bytes else "none"


def enforcement(descriptor: int) -> str:
    """Return why no quota is enforced on this file system, or an empty text."""
    system = file_system(descriptor)
    return obstacle(system, _state(system))


def counted(descriptor: int, number: int) -> Counted | None:
    """Return what the kernel has counted for a folder; None where it does not count this one."""
    system = file_system(descriptor)
    if not _state(system) & _COUNTED or _project(descriptor) != number:
        return None
    fields = _DQBLK.unpack(_quotactl(_GET_QUOTA, system.source, number, bytes(_DQBLK.size)))
    return Counted(used_bytes=fields[2], files=max(0, fields[5] - 1))


def obstacle(system: FileSystem, state: int) -> str:
    """Return in words why a file system in this state limits nothing, or an empty text where it does."""
    if state & _ENFORCED:
        return ""
    if system.kind not in _WITH_PROJECTS:
        return f"{_NO_QUOTA}: {system.kind or 'its file system'} has no project quotas"
    return f"{_NO_QUOTA}: its {system.kind} is mounted without prjquota"


def _blocks(quota_bytes: int | None) -> int:
    return -(-(quota_bytes or 0) // _BLOCK_BYTES)


def _listed(mountinfo: str, device: str) -> FileSystem:
    """Return the newest mount of a device: proc(5), /proc/pid/mountinfo."""
    found = [FileSystem(mount.kind, mount.source) for mount in mounts(mountinfo) if mount.device == device]
    return found[-1] if found else FileSystem("", "")


def _state(system: FileSystem) -> int:
    """Return which quotas are on, as flags; 0 for a file system without."""
    if system.kind not in _WITH_PROJECTS:
        return 0
    try:
        answer = _quotactl(_GET_STATE, system.source, 0, bytes(_STATE_BYTES))
    except OSError:
        return 0
    return int(struct.unpack_from("=H", answer, 2)[0])


def _project(descriptor: int) -> int:
    return int(_FSXATTR.unpack(fcntl.ioctl(descriptor, _FSGETXATTR, bytes(_FSXATTR.size)))[3])


def _join(descriptor: int, number: int) -> None:
    """Put the folder into its project, for which all that is made in it then counts."""
    flags, extent, extents, project, copy = _FSXATTR.unpack(fcntl.ioctl(descriptor, _FSGETXATTR, bytes(_FSXATTR.size)))
    if project != number or not flags & _INHERITED:
        fcntl.ioctl(descriptor, _FSSETXATTR, _FSXATTR.pack(flags | _INHERITED, extent, extents, number, copy))


def _quotactl(command: int, source: str, number: int, data: bytes) -> bytes:
    """Return the data as the kernel leaves them; raises OSError."""
    buffer = ctypes.create_string_buffer(data, len(data))
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.c_int((command << 8) | _OF_PROJECTS)
    if libc.quotactl(code, os.fsencode(source), ctypes.c_int(number), buffer):
        number_of_error = ctypes.get_errno()
        raise OSError(number_of_error, os.strerror(number_of_error))
    return buffer.raw
