"""The cache of gangs that were looked up: the arrays behind `gang_cache.Cache`."""

from collections.abc import Sequence
from copy import copy
from typing import Final, Self, TypeVar

import numpy as np
import numpy.typing as npt

from muster.core.scheduling.placement import columns, gang_cache
from muster.core.scheduling.placement.compiled import Flags, Floats, Ints
from muster.core.scheduling.placement.corner import has_corners
from muster.core.scheduling.placement.gang import Gang, demanding_first
from muster.core.scheduling.placement.hardware import DOMAINS, Hardware

_MOST_BYTES: Final = 128 << 20
_MOST_ROWS: Final = 2048
_FIRST_ROWS: Final = 8
_NO_ROW: Final = -1
SCARCEST: Final = "scarcest first"
"""In a key: the gang whose kernels are laid down in an order of their own."""
Number = TypeVar("Number", bound=np.generic)


def _doubled(array: npt.NDArray[Number]) -> npt.NDArray[Number]:
    return np.concatenate((array, np.zeros_like(array)))


class Memory:
    def __init__(self, hardware: Hardware, shut: Flags) -> None:
        agents = len(hardware.agents)
        blocks = -(-agents // gang_cache.BLOCK)
        self._hardware = hardware
        self._shut = shut
        self._numbers: dict[Gang | tuple[Gang, str], int] = {}
        self._owners: list[int] = []
        self._oldest = 0
        self._most_rows = max(_FIRST_ROWS, min(_MOST_ROWS, _MOST_BYTES // (16 * max(1, agents))))
        self._kernels = 0
        self.most_kernels = 0
        self.shapes: Ints = np.zeros((_FIRST_ROWS, gang_cache.END_DOMAIN + 1), dtype=np.int64)
        self.requests: Ints = np.zeros((_FIRST_ROWS, columns.LIKE_LAST + 1), dtype=np.int64)
        self.serves: Flags = np.zeros((_FIRST_ROWS, len(hardware.models) + 1), dtype=np.bool_)
        self.held: Ints = np.zeros((_FIRST_ROWS, agents), dtype=np.int64)
        self.score: Floats = np.zeros((_FIRST_ROWS, agents))
        self.best: Floats = np.zeros((_FIRST_ROWS, blocks))
        self.log: Ints = np.zeros(1 + max(64, agents), dtype=np.int64)
        self.now: Floats = np.full(agents, np.nan)
        self.stamps: Ints = np.zeros(agents + 1, dtype=np.int64)

    @property
    def arrays(self) -> tuple[Ints, Ints, Flags, Ints, Floats, Floats, Ints, Floats, Ints]:
        """Return the arrays in the order of `gang_cache.Cache`."""
        return (
            self.shapes,
            self.requests,
            self.serves,
            self.held,
            self.score,
            self.best,
            self.log,
            self.now,
            self.stamps,
        )

    def copy(self) -> Self:
        twin = copy(self)
        twin._numbers = dict(self._numbers)  # noqa: SLF001
        twin._owners = list(self._owners)  # noqa: SLF001
        for name in ("shapes", "requests", "serves", "held", "score", "best", "log", "now", "stamps"):
            setattr(twin, name, getattr(self, name).copy())
        return twin

    def knows(self, gang: Gang | tuple[Gang, str]) -> int | None:
        """Return the gang's number, if there is one and its row is kept."""
        number = self._numbers.get(gang)
        return None if number is None or self.shapes[number, gang_cache.ROW] == _NO_ROW else number

    def learn(self, gang: Gang, order: Sequence[int] = ()) -> int:
        """Return the gang's number, a new one if necessary. Arrays may be others afterwards.

        With an `order` of its ranks it is another number, with which kernels are laid down in that order.
        """
        key = (gang, SCARCEST) if order else gang
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._numbers)
            self._describe(gang, number, order or demanding_first(gang.slots))
        row = self._row_for(number)
        shut = self._shut.copy()
        for unfit in self._hardware.unfit(gang.constraint).values():
            shut |= unfit
        self.held[row] = np.where(shut, gang_cache.RULED_OUT, 0)
        self.shapes[number, gang_cache.ROW] = row
        self.shapes[number, gang_cache.SYNCED] = gang_cache.NEVER_SYNCED
        return number

    def changed(self, agents: Ints) -> None:
        """Note that these agents have something else free."""
        different = np.unique(agents)
        size, count = len(self.log) - 1, len(different)
        self.log[1 + (self.log[0] + np.arange(count)) % size] = different
        self.log[0] += count
        self.now[different] = np.nan

    def _describe(self, gang: Gang, number: int, order: Sequence[int]) -> None:
        if number == len(self.shapes):
            self.shapes, self.serves = _doubled(self.shapes), _doubled(self.serves)
        in_order = [gang.slots[rank] for rank in order]
        rows = [
            (slots.cpu, slots.mem, slots.fgpu, slots.gpu, rank, slots == last)
            for rank, slots, last in zip(order, in_order, (None, *in_order), strict=False)
        ]
        shape = self.shapes[number]
        shape[gang_cache.START] = self._kernels
        shape[gang_cache.COUNT] = len(order)
        shape[gang_cache.UNIFORM] = len(set(gang.slots)) == 1
        shape[gang_cache.PICKY] = bool(gang.constraint.gpu_models)
        # By none where more than one way to lay down its kernels is tried.
        covers = gang.spread and not has_corners(gang)
        domains = DOMAINS[gang.constraint.topology] if covers else (0, 0)
        shape[gang_cache.FIRST_DOMAIN : gang_cache.END_DOMAIN + 1] = domains
        self.serves[number, :-1] = [gang.constraint.takes_model(model) for model in self._hardware.models]
        while len(self.requests) < self._kernels + len(order):
            self.requests = _doubled(self.requests)
        self.requests[self._kernels : self._kernels + len(order)] = rows
        self._kernels += len(order)
        self.most_kernels = max(self.most_kernels, len(order))

    def _row_for(self, number: int) -> int:
        """Return a row that is free, or that of the gang that got its own longest ago."""
        if len(self._owners) < self._most_rows:
            row = len(self._owners)
            self._owners.append(number)
            if row == len(self.held):
                self.held, self.score, self.best = _doubled(self.held), _doubled(self.score), _doubled(self.best)
            return row
        row = self._oldest
        self._oldest = (row + 1) % self._most_rows
        self.shapes[self._owners[row], gang_cache.ROW] = _NO_ROW
        self._owners[row] = number
        return row
