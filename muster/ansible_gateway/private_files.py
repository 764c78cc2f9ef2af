"""Directories for a run's files, which hold secrets."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def private_directory() -> Iterator[Path]:
    """Make a directory for a run's files, secrets among them; it is gone afterwards.

    Its mode is 0700. It lies on a tmpfs where there is one.
    """
    memory = Path("/dev/shm")  # noqa: S108 - a tmpfs: secrets do not reach a disk
    with tempfile.TemporaryDirectory(prefix="muster-", dir=memory if os.access(memory, os.W_OK) else None) as path:
        yield Path(path)
