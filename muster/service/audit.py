"""The audit log in the state directory: a line of JSON for each action of a user, by every interface.

Refused requests of strangers go to files of their own, so that many of them rotate no other record away.
"""

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
    """A log that appends to `audit.log`, mode 0600, and keeps a few older files; so with `audit-strangers.log`.

    Commands and the server write at the same time, so each record opens the file anew, under a lock.
    """

    def __init__(self, settings: Settings, most_bytes: int = _MOST_BYTES) -> None:
        self._directory = settings.state_dir
        self._most_bytes = most_bytes

    def write(self, record: Mapping[str, Any]) -> None:
        """Write a record with the time. A file that cannot be written is said in the log, and stops nobody."""
        path = self._directory / ("audit.log" if record.get("user") else "audit-strangers.log")
        line = json.dumps({"at": timestamp(time.time()), **record})
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(path.with_name("audit.lock")) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._rotate(path)
                with _opened(path) as file:
                    _append(file, f"{line}\n".encode())
        except OSError as error:
            log.error("%s cannot be written: %s; it lacks %s", path, error.strerror or error, line)  # noqa: TRY400 - one line

    def _rotate(self, path: Path) -> None:
        if not path.exists() or path.stat().st_size < self._most_bytes:
            return
        for number in range(_KEPT_FILES - 1, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number + 1}"))
        path.replace(path.with_name(f"{path.name}.1"))


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
