"""Files of the control node's own state: written whole or not at all, and a failure is one line that names the file."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.core.values.errors import UnwritableError

_REMEDIES = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there",
    errno.EFBIG: "free space there",
    errno.ENOENT: "make its directory first",
    errno.EROFS: "mount it for writing",
}


def write_whole(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file with this mode, and its directory if that is missing.

    Others read the old content or the new one at any moment, also after a crash. Raises UnwritableError.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    with writing_to(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Raises UnwritableError in place of OSError."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from None


def unwritable(path: Path, error: OSError) -> UnwritableError:
    """Return the error as one line with the file and what to do."""
    remedy = _REMEDIES.get(error.errno or 0, "see its permissions and its disk")
    return UnwritableError(f"{path} cannot be written: {error.strerror or error}; {remedy}")
