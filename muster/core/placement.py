"""Where a gang goes: on one agent when one can hold it, otherwise on as few as a greedy choice finds.

Among agents that serve, the one with the least left over is taken (best fit), so that large rooms stay whole for
large gangs; ties go to the agent's id, so that the same input gives the same plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from muster.core.room import Room
from muster.core.session import Allocation, Kernel


@dataclass(frozen=True, slots=True)
class Policy:
    """`spans_agents`: whether a multi-node gang may be spread over several agents (that takes an overlay network)."""

    spans_agents: bool = False


@dataclass(frozen=True, slots=True)
class _Filled:
    room: Room
    allocations: Mapping[str, Allocation]


def place_gang(
    kernels: Sequence[Kernel], rooms: Sequence[Room], *, spread: bool
) -> tuple[dict[str, Allocation], dict[str, Room]] | None:
    """Allocations by kernel id and the changed rooms by agent id; None when the gang does not fit as a whole."""
    wholes = [filled for room in rooms if len((filled := _fill(room, kernels)).allocations) == len(kernels)]
    if not wholes:
        wholes = [found for room in rooms if (found := _search(room, kernels))]
    if wholes:
        best = min(wholes, key=_leftover)
        return dict(best.allocations), {best.room.agent.id: best.room}
    if not spread:
        return None
    allocations: dict[str, Allocation] = {}
    changed: dict[str, Room] = {}
    waiting = list(kernels)
    open_rooms = list(rooms)
    while waiting:
        partial = [_fill(room, waiting) for room in open_rooms]
        if not any(filled.allocations for filled in partial):
            return None
        best = min(partial, key=lambda f: (-len(f.allocations), *_leftover(f)))
        allocations.update(best.allocations)
        changed[best.room.agent.id] = best.room
        waiting = [kernel for kernel in waiting if kernel.id not in allocations]
        open_rooms = [room for room in open_rooms if room.agent.id != best.room.agent.id]
    return allocations, changed


def _fill(room: Room, kernels: Sequence[Kernel]) -> _Filled:
    """As many of the kernels as the room holds, the demanding ones first."""
    allocations: dict[str, Allocation] = {}
    for kernel in sorted(kernels, key=_demand, reverse=True):
        shares = room.shares_for(kernel.slots)
        if shares is not None:
            room = room.take(kernel.slots, shares)
            allocations[kernel.id] = Allocation(room.agent.id, shares)
    return _Filled(room, allocations)


def _search(room: Room, kernels: Sequence[Kernel]) -> _Filled | None:
    """All of the kernels, where filling in order found no place for each."""
    found = room.shares_for_all([kernel.slots for kernel in kernels])
    if found is None:
        return None
    for kernel, shares in zip(kernels, found, strict=True):
        room = room.take(kernel.slots, shares)
    return _Filled(
        room, {kernel.id: Allocation(room.agent.id, shares) for kernel, shares in zip(kernels, found, strict=True)}
    )


def _demand(kernel: Kernel) -> tuple[int, int, int, int, int]:
    slots = kernel.slots
    return slots.gpu, slots.fgpu, slots.mem, slots.cpu, -kernel.rank


def _leftover(filled: _Filled) -> tuple[int, float, str]:
    room, capacity = filled.room, filled.room.agent.capacity
    shares = [room.cpu / capacity.cpu if capacity.cpu else 0, room.mem / capacity.mem if capacity.mem else 0]
    return sum(room.gpu_free), sum(shares), room.agent.id
