"""What may start now without delaying the head of the queue."""

from collections.abc import Sequence

from muster.core.model.session import Allocation
from muster.core.scheduling.placement import Gang, Holder, PlacementState


class Room:
    """The capacity for those behind a head that starts later: what is free `now`, and beside the head at its start.

    Both states change with what is placed. What ends in time, before the head starts, needs what is free now alone.
    """

    def __init__(self, now: PlacementState, beside: PlacementState) -> None:
        self._now = now
        self._beside = beside
        self._both = now.least(beside)

    def place(self, gang: Gang, closed: frozenset[str], *, in_time: bool) -> tuple[Allocation, ...] | None:
        """Take capacity for a gang; return the allocations by rank, or None where it does not fit."""
        given = self.given(in_time=in_time)
        allocations = given.place(gang, closed)
        if allocations is not None and in_time:
            self._both.take_least(self._now, self._beside, gang)
        elif allocations is not None:
            self._now.take_as(given, gang)
            self._beside.take_as(given, gang)
        return allocations

    def place_each(self, gangs: Sequence[Gang], in_time: Sequence[bool]) -> list[tuple[Allocation, ...]]:
        """Place gangs in turn as `PlacementState.place_each`; return what they were given."""
        return self._both.place_each_beside(gangs, self._now, self._beside, in_time)

    def given(self, *, in_time: bool) -> PlacementState:
        """Return the state in which places are looked for."""
        return self._now if in_time else self._both

    def release(self, kernels: Sequence[Holder], *, in_time: bool) -> None:
        """Give back what `place` took."""
        self._now.release(kernels)
        if not in_time:
            self._beside.release(kernels)
        self._both.renew_least(self._now, self._beside, kernels)

    def take(self, kernels: Sequence[Holder], *, in_time: bool) -> None:
        """Take again what `release` gave back."""
        self._now.take(kernels)
        if not in_time:
            self._beside.take(kernels)
        self._both.renew_least(self._now, self._beside, kernels)
