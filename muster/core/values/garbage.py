"""When to look for garbage, and among what."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

_SEARCH_ALL_S = 3600.0
# The number of the generation that a full search goes over.
_FULL = 2


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


class RareSearches:
    """Searches for garbage among all that a process holds, once an hour; those in between go over what is newer.

    For a process that holds much for long: Python would search all of it whenever enough is new. With a hundred
    thousand sessions that stops every thread for some 0.8 s, each second minute, because agents report. So what a full
    search of Python's own has found to be in use is left out of the next ones. The clock is one of seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at: float | None = None

    def make_if_due(self) -> None:
        """Search all if an hour has passed since the last time; the first time leave out all that there is."""
        now = self._clock()
        if self._at is None:
            gc.callbacks.append(_keep_what_was_searched)
            # Hardly any of what a process has just loaded is garbage, and that goes with the next search.
            gc.freeze()
        elif now < self._at:
            return
        else:
            gc.unfreeze()
            # What is in use is kept by the callback.
            gc.collect()
        self._at = now + _SEARCH_ALL_S


def _keep_what_was_searched(phase: str, search: Mapping[str, int]) -> None:
    if phase == "stop" and search["generation"] == _FULL:
        gc.freeze()
