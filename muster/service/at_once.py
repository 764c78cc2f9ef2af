"""A bound of what users have agents do at once, so that no user takes the threads and programs of all others."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from muster.core.values.errors import NotPossibleInStateError


class AtOnce:
    """A bound of what is under way of one kind: in all, and for each user. `what` is its noun and verb in a refusal."""

    def __init__(self, most: int, most_of_one: int, what: tuple[str, str]) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._what = what
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def counted(self, user: str, most_of_one: int | None = None) -> Iterator[None]:
        """Count one of the user's until the context ends; they may have `most_of_one`, where the site says so.

        Raises NotPossibleInStateError where too many are there.
        """
        with self._lock:
            is_one_users = self._under_way[user] >= (most_of_one or self._most_of_one)
            if is_one_users or self._under_way.total() >= self._most:
                noun, verb = self._what
                whose = "yours" if is_one_users else "all users"
                raise NotPossibleInStateError(f"too many {noun} of {whose} {verb}; try again in a minute")
            self._under_way[user] += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way[user] -= 1
                if not self._under_way[user]:
                    del self._under_way[user]
