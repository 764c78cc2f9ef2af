"""The difference between two long sequences of the same values, of which few have changed."""

from collections.abc import Iterable, Sequence
from itertools import compress, count
from operator import is_, is_not
from typing import Generic, TypeVar

Value = TypeVar("Value")

# After so many places at which they differ, the rest is compared by a dictionary: each place costs a copy of the rest.
_MOST_PLACES = 16


def difference(before: Sequence[Value], now: Sequence[Value]) -> tuple[list[Value], list[Value]]:
    """Return which values are gone and which are new, by their identity. None stands twice in a sequence.

    What is the same in the same order is passed over by compiled code.
    """
    gone: list[Value] = []
    new: list[Value] = []
    for _ in range(_MOST_PLACES):
        same = next(compress(count(), map(is_not, before, now)), min(len(before), len(now)))
        before, now = before[same:], now[same:]
        if not (before and now):
            break
        if before[1:2] and before[1] is now[0]:
            gone.append(before[0])
            before = before[1:]
        elif now[1:2] and now[1] is before[0]:
            new.append(now[0])
            now = now[1:]
        else:
            gone.append(before[0])
            new.append(now[0])
            before, now = before[1:], now[1:]
    gone += before
    new += now
    return _without(gone, new), _without(new, gone)


def are_the_same(some: Sequence[object], others: Sequence[object]) -> bool:
    """Return whether the same values stand in the same order, by their identity."""
    return some is others or (len(some) == len(others) and all(map(is_, some, others)))


class Changes(Generic[Value]):
    """The values that came and went since somebody last asked."""

    def __init__(self) -> None:
        # By identity, which is good for as long as the value is here.
        self._gone: dict[int, Value] = {}
        self._new: dict[int, Value] = {}

    def add(self, gone: Sequence[Value], new: Sequence[Value]) -> None:
        """Add later changes. Of what came and went nothing is left."""
        for value in gone:
            if self._new.pop(id(value), None) is None:
                self._gone[id(value)] = value
        self._new.update(zip(map(id, new), new, strict=True))

    def taken(self) -> tuple[list[Value], list[Value]]:
        """Return what is gone and what is new, and begin anew."""
        gone, new = list(self._gone.values()), list(self._new.values())
        self._gone, self._new = {}, {}
        return gone, new


def _without(some: Sequence[Value], others: Iterable[Value]) -> list[Value]:
    known = set(map(id, others))
    return [value for value in some if id(value) not in known]
