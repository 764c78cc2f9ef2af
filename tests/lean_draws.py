"""Draws of single values that cost little: Hypothesis keeps a record of each, with its place in the draws around it.

Shrinking knows each value without that record, which was a sixth of the CPU of properties.
"""

from typing import Any

import pytest
from hypothesis import control
from hypothesis.internal import entropy
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.strategies import SearchStrategy
from hypothesis.strategies._internal.lazy import unwrap_strategies
from hypothesis.strategies._internal.misc import BooleansStrategy
from hypothesis.strategies._internal.numbers import IntegersStrategy
from hypothesis.strategies._internal.strategies import SampledFromStrategy

_SINGLE = frozenset({BooleansStrategy, IntegersStrategy, SampledFromStrategy})
_draw = ConjectureData.draw


class _UnusedRandom:
    """A source of random numbers without a state to compare before and after each example."""

    @staticmethod
    def getstate() -> None: ...


def draw_leanly() -> None:
    """From now on, keep no record of a single value that is drawn inside another draw."""
    patch = pytest.MonkeyPatch()
    patch.setattr(ConjectureData, "draw", _lean_draw)
    # Python's global random numbers, as NumPy's in tests/properties.py: nothing draws from them (ruff's S311).
    patch.setattr(control, "random", _UnusedRandom)
    entropy.RANDOMS_TO_MANAGE.clear()


def _lean_draw(data: ConjectureData, strategy: SearchStrategy[Any], *given: Any, **named: Any) -> Any:
    if data.depth > 0:
        single = unwrap_strategies(strategy)
        if type(single) in _SINGLE:
            return single.do_draw(data)
    return _draw(data, strategy, *given, **named)
