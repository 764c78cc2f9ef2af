"""Virtual time: what happens next, in one thread."""

import heapq
import random
from collections.abc import Callable
from itertools import count

Act = Callable[[], None]


class Timeline:
    """A queue of acts by their times; of two at the same time, the one that was put first comes first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = count()
        self._coming: list[tuple[float, int, Act]] = []

    def after(self, delay_s: float, act: Act) -> None:
        """Let this happen so many seconds from now."""
        heapq.heappush(self._coming, (self.now + delay_s, next(self._numbers), act))

    def step(self, until: float) -> bool:
        """Let the next thing happen; return whether anything comes until then. Otherwise it is that time."""
        if not self._coming or self._coming[0][0] > until:
            self.now = max(self.now, until)
            return False
        at, _, act = heapq.heappop(self._coming)
        self.now = max(self.now, at)
        act()
        return True

    def sleep(self, seconds: float) -> None:
        """Let time pass, with all that happens meanwhile."""
        until = self.now + seconds
        while self.step(until):
            continue


class Chance:
    """A stream of random numbers for one part of the world: what happens elsewhere does not change it."""

    def __init__(self, seed: int, part: str) -> None:
        self._random = random.Random(f"{seed} {part}")

    def seconds(self, least: float, most: float) -> float:
        return least + (most - least) * self._random.random()

    def pick(self, *choices: object) -> object:
        return choices[int(self._random.random() * len(choices))]

    def happens(self, probability: float) -> bool:
        return self._random.random() < probability
