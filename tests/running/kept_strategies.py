"""Strategies that are made once, not once for each draw.

`draw(st.sampled_from((1, 2)))` makes a strategy in each example, and Hypothesis checks each one that it has not seen:
an eighth of the CPU of properties.
"""

from collections.abc import Sequence
from enum import Enum
from types import NoneType
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

# What a test computes in a draw is another tuple each time. Most of those hold larger values than these.
_PLAIN = (str, int, float, Enum, NoneType)
_MOST = 1000
_sampled: dict[int, tuple[object, SearchStrategy[Any]]] = {}
_joined: dict[tuple[int, int], tuple[object, object, SearchStrategy[Any]]] = {}
_sampled_from = st.sampled_from
_or = SearchStrategy.__or__


def keep_strategies() -> None:
    """From now on, keep the strategies for the tuples that tests draw from, and for one strategy or another."""
    patch = pytest.MonkeyPatch()
    patch.setattr(st, "sampled_from", _kept_sampled_from)
    patch.setattr(SearchStrategy, "__or__", _kept_or)


def _kept_sampled_from(elements: Sequence[Any]) -> SearchStrategy[Any]:
    if not isinstance(elements, tuple):
        return _sampled_from(elements)
    # By identity: equal tuples may hold 1 and True. What is kept keeps its identity to itself.
    found = _sampled.get(id(elements))
    if found is not None:
        return found[1]
    made = _sampled_from(elements)
    if all(isinstance(element, _PLAIN) for element in elements):
        if len(_sampled) == _MOST:
            _sampled.clear()
        _sampled[id(elements)] = (elements, made)
    return made


def _kept_or(one: SearchStrategy[Any], other: SearchStrategy[Any]) -> SearchStrategy[Any]:
    found = _joined.get((id(one), id(other)))
    if found is not None:
        return found[2]
    made = _or(one, other)
    if len(_joined) == _MOST:
        _joined.clear()
    _joined[id(one), id(other)] = (one, other, made)
    return made
