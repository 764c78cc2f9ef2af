"""How long decisions take, counted where any process can read it: the server that shows them is another one."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from muster.store.store import Store

BOUNDS_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
_SUM = "pass-us"
_WRITTEN_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class PassDurations:
    """The durations of passes: `buckets` counts, by upper bound in seconds, the passes that took no longer."""

    buckets: Mapping[float, int]
    count: int
    sum_s: float


class PassTimer:
    """A timer that writes every few seconds, so that a busy queue does not write for each of its passes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._unwritten: Counter[str] = Counter()
        self._write_at = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        took = time.monotonic() - began
        self._unwritten[_counter(next((bound for bound in BOUNDS_S if took <= bound), None))] += 1
        self._unwritten[_SUM] += int(took * 1e6)
        if time.monotonic() >= self._write_at:
            self.write()

    def write(self) -> None:
        """Raises StoreUnavailableError; unwritten durations are kept for the next write."""
        if self._unwritten:
            self._store.add_to_counters(self._unwritten)
            self._unwritten.clear()
        self._write_at = time.monotonic() + _WRITTEN_EVERY_S


def pass_durations(store: Store) -> PassDurations:
    """Return the durations of all passes ever."""
    values = store.counters([_SUM, *map(_counter, (*BOUNDS_S, None))])
    buckets: dict[float, int] = {}
    count = 0
    for bound in BOUNDS_S:
        count += values.get(_counter(bound), 0)
        buckets[bound] = count
    return PassDurations(buckets, count + values.get(_counter(None), 0), values.get(_SUM, 0) / 1e6)


def _counter(bound: float | None) -> str:
    return f"pass-le-{'inf' if bound is None else bound}"
