"""Waiting for what must come true, and saying what was there instead when it does not."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(look: Callable[[], T], is_so: Callable[[T], bool], within_s: float = 120) -> T:
    """Call `look` until its result is as awaited, and return that."""
    deadline = time.monotonic() + within_s
    while not is_so(seen := look()):
        assert time.monotonic() < deadline, f"after {within_s} s it is still {seen}"
        time.sleep(0.5)
    return seen
