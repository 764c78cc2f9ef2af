"""Many values at once, from the columns of their fields."""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import fields
from functools import cache
from itertools import repeat, starmap
from typing import Any, TypeVar, cast

Value = TypeVar("Value")


def values_of(kind: type[Value], first: Sequence[object], *others: Iterable[object]) -> list[Value]:
    """Return values of a frozen dataclass with slots, of which each column holds one field, in their order.

    They are those that the class would make one by one, but no code of Python runs for each of them. Raises ValueError
    where the columns are not those of all fields, or not of the same length.
    """
    made = [*map(object.__new__, repeat(kind, len(first)))]
    setters = _setters(cast("Hashable", kind))
    for setter, column in zip(setters, (first, *others), strict=True):
        deque(starmap(setter, zip(made, column, strict=True)), maxlen=0)
    return made


@cache
def _setters(kind: type[object]) -> tuple[Callable[[Any, Any], None], ...]:
    return tuple([getattr(kind, field.name).__set__ for field in fields(cast("Any", kind))])
