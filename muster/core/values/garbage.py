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

    For a process that has loaded its code and is about to serve: a search among all of that stops its threads, for
    some 0.1 s in `muster web`, and copies the pages that a fork shares. Values still go when nothing refers to them;
    only what refers to itself in a circle stays.
    """
    gc.collect()
    gc.freeze()
