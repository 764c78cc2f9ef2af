"""Mounts whose files show other ids than those that they have on the disk (idmapped mounts, Linux 5.12).

Python has no functions for these system calls; their numbers are the same on all architectures that Muster knows.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .engine.id_mapping import IdMapping, IdRange

_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_AT_EMPTY_PATH, _AT_RECURSIVE, _AT_FDCWD = 0x1000, 0x8000, -100
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x100000
_MS_PRIVATE = 0x40000
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def are_supported() -> bool:
    """Return whether this host's Linux kernel has mounts with mapped ids. A file system may still lack them."""
    try:
        _set_attributes(-1, _MountAttributes())
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


@contextmanager
def user_namespace(mapping: IdMapping) -> Iterator[int]:
    """Yield a descriptor of a user namespace with this mapping. Raises OSError."""
    # The namespace lives by the descriptor; the program in it only waits until its mapping is written.
    command = ["unshare", "--user", "sh", "-c", "echo; read -r _"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        if not (program.stdout and program.stdout.readline()):
            raise OSError(errno.EPERM, "no user namespace can be made on this agent")
        process = Path(f"/proc/{program.pid}")
        (process / "uid_map").write_text(_lines(mapping.uids), "ascii")
        (process / "gid_map").write_text(_lines(mapping.gids), "ascii")
        descriptor = os.open(process / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def bind_mapped(descriptor: int, target: Path, namespace: int) -> None:
    """Mount an open directory, and what is mounted below it, at another place, with a user namespace's ids there.

    Neither mounts nor unmounts below the place reach the directory, or come from there. Raises OSError, with EINVAL
    where a file system cannot do it.
    """
    tree = _call(
        _OPEN_TREE,
        ctypes.c_int(descriptor),
        b"",
        ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | _AT_RECURSIVE),
    )
    try:
        _set_attributes(tree, _MountAttributes(_MOUNT_ATTR_IDMAP, 0, _MS_PRIVATE, namespace))
        place = os.fsencode(target)
        here = ctypes.c_int(_AT_FDCWD)
        _call(_MOVE_MOUNT, ctypes.c_int(tree), b"", here, place, ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH))
    finally:
        os.close(tree)


def _set_attributes(tree: int, attributes: _MountAttributes) -> None:
    flags = ctypes.c_uint(_AT_EMPTY_PATH | _AT_RECURSIVE)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    _call(_MOUNT_SETATTR, ctypes.c_int(tree), b"", flags, ctypes.byref(attributes), size)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _lines(ranges: tuple[IdRange, ...]) -> str:
    return "".join(f"{found.inside} {found.host} {found.length}\n" for found in ranges)
