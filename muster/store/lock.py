"""One pass at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.core.errors import PassInProgressError


@contextmanager
def exclusive(path: Path, *, wait: bool) -> Iterator[None]:
    """Holds a lock that ends with the process, however it ends.

    Raises PassInProgressError when another holds it and `wait` is false.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise PassInProgressError("another pass is at work on this queue; it will see what is new") from None
        yield
