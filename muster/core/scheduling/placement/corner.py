"""Search for places of a gang's shares on the GPUs of one agent.

Placing one share after the other is quick and nearly always right. Where it ends in a corner, a gang that fits would be
refused for ever. So the search has the last word, within limits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from muster.core.scheduling.placement import columns
from muster.core.scheduling.placement.columns import CAPACITY, CUT, MOST_CPU, NO_UNIT, UNIT
from muster.core.scheduling.placement.compiled import Flags, Ints
from muster.core.scheduling.placement.gang import Gang
from muster.core.scheduling.placement.hardware import Hardware
from muster.core.values.slots import total

MAX_STEPS = 2_000
MAX_SHARES = 200


class Packing(NamedTuple):
    """The entry that holds each amount, or None when no way was found; and the dead ends that the search met."""

    entries: list[int] | None
    steps: int


def packing(amounts: Sequence[int], free: Sequence[int], max_steps: int = MAX_STEPS) -> Packing:
    """Return which entries of `free` hold the amounts.

    After `max_steps` dead ends nothing else is tried; one way is always tried to its end.
    """
    if len(amounts) > MAX_SHARES or sum(amounts) > sum(free):
        return Packing(None, 0)
    order = sorted(range(len(amounts)), key=lambda index: (-amounts[index], index))
    left = list(free)
    chosen = [0] * len(amounts)
    dead_ends: set[tuple[int, ...]] = set()

    def search(position: int) -> bool:
        if position == len(order):
            return True
        state = (position, *sorted(left))
        if state in dead_ends:
            return False
        amount = amounts[order[position]]
        tried = set()
        for gpu in sorted(range(len(left)), key=lambda gpu: (left[gpu], gpu)):
            if left[gpu] < amount or left[gpu] in tried:
                continue
            tried.add(left[gpu])
            left[gpu] -= amount
            chosen[order[position]] = gpu
            if search(position + 1):
                return True
            left[gpu] += amount
            if len(dead_ends) >= max_steps:
                break
        dead_ends.add(state)
        return False

    found = search(0)
    return Packing(chosen if found else None, len(dead_ends))


def has_corners(gang: Gang) -> bool:
    """Return whether the order in which its shares are placed matters: shares that are all alike fit or do not."""
    return len({slots.fgpu for slots in gang.slots if slots.fgpu}) > 1


def cornered(
    hardware: Hardware, free: Ints, gang: Gang, serves: Flags, candidates: Flags, max_steps: int
) -> tuple[list[list[int]] | None, int]:
    """Return the kernels' places by rank (as in `columns`) on the first of the `candidates` that holds them all.

    None where none does; and the steps of all searches, `max_steps` or little more. `serves` says of each GPU (agents,
    width) whether the gang may use it.
    """
    steps = 0
    request = total(gang.slots)
    gpus = np.where(serves, np.maximum(0, free[:, columns.FIRST_GPU :]), 0)
    cut = hardware.block(CUT) != 0
    enough = (
        candidates
        & (free[:, columns.CPU] >= request.cpu)
        & (free[:, columns.MEM] >= request.mem)
        & (hardware.fixed[:, MOST_CPU] >= max(slots.cpu for slots in gang.slots))
        & (hardware.fixed[:, UNIT] > 0)
        # With one kernel on each GPU, the demanding ones first and the smallest GPU that fits, there are no corners.
        & (hardware.fixed[:, UNIT] < NO_UNIT)
        & (np.where(cut, gpus, 0).sum(axis=1) >= request.fgpu)
    )
    hopeless: set[tuple[int, ...]] = set()
    for agent in np.flatnonzero(enough).tolist():
        unit, capacities = int(hardware.fixed[agent, UNIT]), hardware.block(CAPACITY)[agent].tolist()
        state = (unit, *gpus[agent].tolist(), *capacities, *cut[agent].tolist())
        if state in hopeless:
            continue
        most = min(MAX_STEPS, max_steps - steps)
        places, taken = _on(agent, unit, gpus[agent].tolist(), capacities, cut[agent].tolist(), gang, most)
        steps += taken
        if places is not None:
            return places, steps
        hopeless.add(state)
    return None, steps


def _on(
    agent: int, unit: int, free: list[int], capacities: list[int], cut: list[bool], gang: Gang, max_steps: int
) -> tuple[list[list[int]] | None, int]:
    counts = [slots.gpu or slots.fgpu // unit for slots in gang.slots]
    parts = {rank: slots.fgpu % unit for rank, slots in enumerate(gang.slots) if slots.fgpu % unit}
    empty = [gpu for gpu, (has, all_of_it) in enumerate(zip(free, capacities, strict=True)) if has == all_of_it > 0]
    if len(empty) < sum(counts):
        return None, 0
    wholes = iter(empty)
    used = [[next(wholes) for _ in range(count)] for count in counts]
    others = [gpu for gpu in range(len(free)) if cut[gpu] and gpu not in set(empty[: sum(counts)])]
    found = packing(list(parts.values()), [free[gpu] for gpu in others], max_steps)
    if found.entries is None:
        return None, found.steps
    part_of = {rank: others[place] for rank, place in zip(parts, found.entries, strict=True)}
    places = [
        [agent, part_of.get(rank, columns.NO_GPU), parts.get(rank, 0), len(gpus), *gpus]
        for rank, gpus in enumerate(used)
    ]
    return places, found.steps
