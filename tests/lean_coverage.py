"""Coverage of properties by their first examples: hundreds of further ones reach the same lines.

A traced test takes two to three times as long.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import coverage
import pytest

_TRACED = 40


@contextmanager
def traced_at_first(item: pytest.Item) -> Iterator[None]:
    """Let coverage look at the property's first examples only. Does nothing for another test, and without coverage."""
    measured = coverage.Coverage.current()
    handle = getattr(getattr(item, "obj", None), "hypothesis", None)
    if measured is None or handle is None:
        yield
        return
    tried, calls = handle.inner_test, 0

    @functools.wraps(tried)
    def inner_test(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == _TRACED + 1:
            measured.stop()
        return tried(*arguments, **named)

    handle.inner_test = inner_test
    try:
        yield
    finally:
        handle.inner_test = tried
        if calls > _TRACED:
            measured.start()
