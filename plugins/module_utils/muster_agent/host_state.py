"""What a host remembers between runs: whose manifest it has accepted, and its generation; the lock around a run."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from .names import ClusterPaths

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOCK_POLL_S = 0.05
_DISK_IS_FULL = {errno.ENOSPC, errno.EDQUOT}


class BusyError(Exception):
    """The error of a run while another holds this host's lock for this cluster."""


@contextmanager
def one_run_at_a_time(cluster: str, patience_s: float) -> Iterator[None]:
    """Hold the cluster's lock on this host; the kernel releases it however this process ends."""
    paths = ClusterPaths(cluster)
    paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT, 0o600)
    give_up_at = time.monotonic() + patience_s
    try:
        while not _locked(descriptor):
            if time.monotonic() > give_up_at:
                raise BusyError(f"another run holds {paths.lock} on this host for more than {patience_s:.0f} s")
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_generation(cluster: str) -> int | None:
    """Return the newest generation that this host has accepted for the cluster."""
    try:
        return int(ClusterPaths(cluster).generation.read_text("ascii"))
    except FileNotFoundError:
        return None


def write_generation(cluster: str, generation: int) -> None:
    """Keep the generation, also on a disk that is full."""
    _keep(ClusterPaths(cluster).generation, str(generation))


def read_database(cluster: str) -> str | None:
    """Return the id of the database whose manifest this host has accepted last; None where none was noted."""
    try:
        return ClusterPaths(cluster).database.read_text("ascii")
    except FileNotFoundError:
        return None


def write_database(cluster: str, database: str) -> None:
    """Keep the database's id, also on a disk that is full; there the first one waits for a later run."""
    path = ClusterPaths(cluster).database
    try:
        _keep(path, database)
    except OSError as error:
        if error.errno not in _DISK_IS_FULL or path.exists():
            raise


def _keep(path: Path, text: str) -> None:
    """Write it durably, also on a disk that is full: stopping sessions may be what makes room there."""
    try:
        write_durably(path, text)
    except OSError as error:
        if error.errno not in _DISK_IS_FULL or not path.exists() or path.stat().st_size != len(text):
            raise
        _overwrite(path, text)


def _overwrite(path: Path, text: str) -> None:
    """Write a text over one of the same length, which needs no room. So few bytes lie in one sector."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, text.encode("ascii"), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, text: str) -> None:
    """Write a file that only root may read; after a crash there is the old one or the new one, and nothing between."""
    temporary = path.with_name(path.name + ".new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise
