"""Waiting for what must come true, and saying what was there instead when it does not."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], is_so: Callable[[T], bool], within_s: float = 300, *, pause_s: float = 0.5) -> T:
    """Call `look` until its result is as awaited, and return that.

    `within_s` is the patience with a busy machine; `pause_s`, the time between two looks, is short if they are cheap.
    """
    deadline = time.monotonic() + within_s
    while not is_so(seen := look()):
        assert time.monotonic() < deadline, f"after {within_s} s it is still {seen}"
        time.sleep(pause_s)
    return seen
