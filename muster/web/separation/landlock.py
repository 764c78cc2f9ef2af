"""Linux's Landlock: a process shuts itself in, for good and without root's rights."""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

# They are the same on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION = 1
_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE, _MAKE_REG, _TRUNCATE = 1 << 1, 1 << 2, 1 << 3, 1 << 5, 1 << 8, 1 << 14
_READING = _READ_FILE | _READ_DIR
_WRITING = _READING | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _TRUNCATE
_OF_FILES = _WRITE_FILE | _READ_FILE | _TRUNCATE
# By version, the rights to files that can be taken: executing, making anything, renaming into another directory.
_FILE_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF}
_CONNECT_TCP = 1 << 1
# Abstract sockets and signals of processes that are not shut in with this one.
_SCOPES = 0b11


def shut_in(readable: Iterable[Path], writable: Iterable[Path]) -> int:
    """Leave this process and those that it starts these files and those below them. Return Landlock's version.

    It executes no program then and, as far as the version goes, connects to no port and signals no other process. The
    version is 0 where the Linux kernel has no Landlock, and nothing is taken away. Only for a process of one thread
    that gets no new rights. Raises OSError.
    """
    version = _version()
    if version < 1:
        return 0
    rights = _FILE_RIGHTS[min(version, 3)]
    net, scopes = _CONNECT_TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0
    attributes = struct.pack("=QQQ", rights, net, scopes)[: 24 if version >= 6 else 16 if version >= 4 else 8]
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for allowed, paths in ((_READING, readable), (_WRITING, writable)):
            for path in paths:
                _allow(ruleset, path, allowed & rights)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _version() -> int:
    try:
        return _call(_CREATE_RULESET, None, 0, _GET_VERSION)
    except OSError:
        return 0


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return  # it is not there for this user anyway
    try:
        if not stat.S_ISDIR(os.fstat(beneath).st_mode):
            rights &= _OF_FILES
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, beneath), 0)
    finally:
        os.close(beneath)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """Raises OSError."""
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *words))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
