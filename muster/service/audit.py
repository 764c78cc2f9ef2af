"""The audit log in the state directory: a line of JSON for each action of a user, by every interface."""

import fcntl
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.core.values.units import timestamp
from muster.settings import Settings

log = logging.getLogger("muster.audit")
_MOST_BYTES = 16 << 20
_KEPT_FILES = 8


class AuditLog:
    """A log that appends to `audit.log`, mode 0600, and keeps a few older files.

    Commands and the server write at the same time, so each record opens the file anew, under a lock.
    """

    def __init__(self, settings: Settings, most_bytes: int = _MOST_BYTES) -> None:
        self._path = settings.state_dir / "audit.log"
        self._most_bytes = most_bytes

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a record with the time. A file that cannot be written is said in the log, and stops nobody."""
        line = json.dumps({"at": timestamp(time.time()), **record})
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(self._path.with_name("audit.lock")) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._rotate()
                with _opened(self._path) as file:
                    _append(file, f"{line}\n".encode())
        except OSError as error:
            log.error("%s cannot be written: %s; it lacks %s", self._path, error.strerror or error, line)  # noqa: TRY400 - one line

    def _rotate(self) -> None:
        if not self._path.exists() or self._path.stat().st_size < self._most_bytes:
            return
        for number in range(_KEPT_FILES - 1, 0, -1):
            older = self._path.with_name(f"audit.log.{number}")
            if older.exists():
                older.replace(self._path.with_name(f"audit.log.{number + 1}"))
        self._path.replace(self._path.with_name("audit.log.1"))


def _append(file: int, content: bytes) -> None:
    """Write all or nothing: on a full disk, half a line would be the beginning of the next. Raises OSError."""
    size = os.fstat(file).st_size
    try:
        while content:
            content = content[os.write(file, content) :]
    except OSError:
        os.ftruncate(file, size)
        raise


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
