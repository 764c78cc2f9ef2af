"""Directories of one process, which hold secrets."""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "muster-"
# As tempfile names them.
_NAME = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")


@contextmanager
def private_directory() -> Iterator[Path]:
    """Make a directory for a run's files, secrets among them; it is gone afterwards.

    Its mode is 0700. It lies on a tmpfs where there is one. What killed processes of this user left there goes first.
    """
    remove_leftovers()
    directory, lock = _make(_parent())
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def hold(directory: Path) -> int:
    """Return a descriptor that keeps the directory from being a leftover, as long as a process has it open."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def remove_leftovers() -> None:
    """Remove private directories of this user that no living process holds."""
    for directory in _parent().iterdir():
        if _NAME.fullmatch(directory.name):
            with suppress(OSError):  # another's, or held, or gone meanwhile
                _remove_if_left(directory)


def _parent() -> Path:
    memory = Path("/dev/shm")  # noqa: S108 - a tmpfs: secrets do not reach a disk
    return memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


def _remove_if_left(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory)
    finally:
        os.close(descriptor)


def _make(parent: Path) -> tuple[Path, int]:
    """Return a new directory, and the descriptor that holds it."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with suppress(FileNotFoundError):  # taken for a leftover before it was held
            lock = hold(directory)
            if os.fstat(lock).st_nlink:
                return directory, lock
            os.close(lock)
