"""Directories of one process, which hold secrets."""

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "muster-"
# As tempfile names them.
_RANDOM = "[a-z0-9_]{8}"


@contextmanager
def private_directory(parent: Path | None = None, prefix: str = _PREFIX, *, spare_s: float = 0) -> Iterator[Path]:
    """Make a directory for this process' files, secrets among them; it is gone afterwards.

    Its mode is 0700. It lies in `parent`; without one, on a tmpfs where there is one. What killed processes of this
    user left there under the same prefix goes first, if nothing came or went in it for `spare_s` seconds: give them
    where other machines may see the parent, and not our locks. Raises OSError.
    """
    parent = parent or _parent()
    remove_leftovers(parent, prefix, spare_s=spare_s)
    directory, lock = _make(parent, prefix)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def hold(directory: Path) -> int:
    """Return a descriptor that keeps the directory from being a leftover, as long as a process has it open."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    with suppress(OSError):  # in a file system without locks nothing is taken for a leftover
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def remove_leftovers(parent: Path | None = None, prefix: str = _PREFIX, *, spare_s: float = 0) -> None:
    """Remove private directories of this user that no living process holds; see `private_directory`."""
    name = re.compile(re.escape(prefix) + _RANDOM)
    with suppress(OSError):  # others may not list it
        for directory in (parent or _parent()).iterdir():
            if name.fullmatch(directory.name):
                with suppress(OSError):  # another's, or held, or gone meanwhile
                    _remove_if_left(directory, spare_s)


def _parent() -> Path:
    memory = Path("/dev/shm")  # noqa: S108 - a tmpfs: secrets do not reach a disk
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def _remove_if_left(directory: Path, spare_s: float) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(descriptor)
        if found.st_uid == os.geteuid() and found.st_mtime <= time.time() - spare_s:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
    finally:
        os.close(descriptor)


def _make(parent: Path, prefix: str) -> tuple[Path, int]:
    """Return a new directory, and the descriptor that holds it."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):  # taken for a leftover before it was held
            lock = hold(directory)
            if os.fstat(lock).st_nlink:
                return directory, lock
            os.close(lock)
