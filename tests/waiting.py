"""Waiting for what must come true, and saying what was there instead when it does not."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# More than anything takes on a machine with much else to do: only a test that fails waits so long.
PATIENCE_S = 120.0


def eventually(
    look: Callable[[], T],
    is_so: Callable[[T], bool] = bool,
    within_s: float = PATIENCE_S,
    complaint: Callable[[], object] = str,
) -> T:
    """Call `look` until its result is as awaited, and return that. `complaint` says why it is not, where one knows."""
    deadline = time.monotonic() + within_s
    pause_s = 0.01
    while not is_so(seen := look()):
        assert time.monotonic() < deadline, f"after {within_s:g} s it is still {seen} {complaint()}"
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.5)
    return seen
