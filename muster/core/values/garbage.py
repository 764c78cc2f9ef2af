"""When to look for garbage, and among what."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Suspend the search for garbage: among a hundred thousand new values it would double the cost of the work."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def keep_what_is_loaded() -> None:
    """Leave all that this process holds now out of later searches for garbage.

    For what has loaded its code and is about to serve: each search among all of that would stop its threads for a
    tenth of a second, and copy the pages that a fork shares.
    """
    gc.collect()
    gc.freeze()
