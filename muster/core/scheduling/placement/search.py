"""Search for places of a gang's kernels on several agents, or prove that there are none.

Taking each time the agent that holds most kernels is quick and nearly always right. Where kernels differ it can end in
a corner: an agent serves kernels that others could have taken, and the one that only it can hold finds no place. So the
search has the last word, within limits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from muster.core.scheduling.placement.columns import (
    CAPACITY,
    CPU,
    CUT,
    EXCLUSIVE,
    FIRST_GPU,
    MEM,
    MOST_CPU,
    NO_GPU,
    SHARED,
    UNCUT,
    UNIT,
)
from muster.core.scheduling.placement.compiled import Flags, Ints
from muster.core.scheduling.placement.gang import Gang
from muster.core.scheduling.placement.hardware import Hardware
from muster.core.values.slots import Slots, total

MAX_KERNELS: Final = 64


class _Kind(NamedTuple):
    """The constant facts of an agent, but for which it is. GPUs are (capacity, cut, serves)."""

    most_cpu: int
    unit: int
    gpus: tuple[tuple[int, int, bool], ...]


class _Room(NamedTuple):
    """The free capacity of an agent of a kind; agents with equal rooms are interchangeable, and counted."""

    kind: int
    cpu: int
    mem: int
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: the places by rank as in `columns`, or None.

    `proven`: there are no such places. `steps` is what the search took.
    """

    places: list[list[int]] | None
    proven: bool
    steps: int


def enough_in_total(hardware: Hardware, free: Ints, gang: Gang, serves: Flags, members: Ints) -> bool:
    """Return whether the members have as much as the gang asks for, wherever it is: if not, nothing places it."""
    request = total(gang.slots)
    gpus, capacity, cut = free[members, FIRST_GPU:], hardware.block(CAPACITY)[members], hardware.block(CUT)[members]
    serves = serves[members]
    empty = serves & (gpus == capacity) & (cut != EXCLUSIVE)
    units = hardware.fixed[members, UNIT]
    # A request of shares takes whole GPUs, or parts of those that are cut.
    shared = np.where(serves & (cut != UNCUT), np.maximum(0, gpus), 0).sum()
    unit = units[units > 0].max(initial=0)
    pooled = np.where(serves, np.maximum(0, gpus), 0).sum() if request.fgpu else 0
    smallest = capacity[empty].min(initial=1 << 60) if request.gpu else 0
    return bool(
        np.maximum(0, free[members, CPU]).sum() >= request.cpu
        and np.maximum(0, free[members, MEM]).sum() >= request.mem
        and empty.sum() >= request.gpu
        and (not request.fgpu or (unit and shared >= request.fgpu))
        and (not request.fgpu or not request.gpu or pooled >= request.fgpu + request.gpu * smallest)
    )


def arrangement(
    hardware: Hardware, free: Ints, gang: Gang, serves: Flags, members: Sequence[int], max_steps: int
) -> Found:
    """Search places on the members together. The kernels that the fewest of them hold come first."""
    if len(gang.slots) > MAX_KERNELS or max_steps <= 0:
        return Found(None, proven=False, steps=0)
    return _Search(hardware, free, gang, serves, members, max_steps).found()


class _Search:
    def __init__(
        self, hardware: Hardware, free: Ints, gang: Gang, serves: Flags, members: Sequence[int], max_steps: int
    ) -> None:
        self._slots = gang.slots
        self._kinds: list[_Kind] = []
        self._free = self._all_free(hardware, free, serves, members)
        self._rooms = dict(self._free)
        self._max_steps = max_steps
        self._steps = 0
        self._exact = True
        self._alike: dict[_Room, list[int]] = {}
        for agent in members:
            self._alike.setdefault(self._rooms[agent], []).append(agent)
        self._touched: list[int] = []
        self._places: list[list[int]] = [[] for _ in gang.slots]
        self._dead: set[tuple[object, ...]] = set()
        holders = {slots: sum(len(alike) for room, alike in self._alike.items() if self._options(room, slots))
                   for slots in set(gang.slots)}  # fmt: skip
        self._order = sorted(
            range(len(gang.slots)), key=lambda rank: (holders[gang.slots[rank]], *_demand(gang.slots[rank]), rank)
        )

    def _all_free(self, hardware: Hardware, free: Ints, serves: Flags, members: Sequence[int]) -> dict[int, _Room]:
        numbers: dict[_Kind, int] = {}
        rooms = {}
        capacities, cuts = hardware.block(CAPACITY), hardware.block(CUT)
        for agent in members:
            known = len(hardware.agents[agent].gpus)
            rows = (block[agent, :known].tolist() for block in (capacities, cuts, serves))
            most_cpu, unit = hardware.fixed[agent, MOST_CPU], hardware.fixed[agent, UNIT]
            kind = _Kind(int(most_cpu), int(unit), tuple(zip(*rows, strict=True)))
            if kind not in numbers:
                numbers[kind] = len(self._kinds)
                self._kinds.append(kind)
            row = free[agent].tolist()
            rooms[agent] = _Room(numbers[kind], row[CPU], row[MEM], tuple(row[FIRST_GPU : FIRST_GPU + known]))
        return rooms

    def found(self) -> Found:
        done = self._search(0)
        return Found(self._places if done else None, not done and self._exact, self._steps)

    def _search(self, position: int) -> bool:
        if position == len(self._order):
            return True
        self._steps += 1
        if self._steps > self._max_steps:
            self._exact = False
            return False
        state = (position, *sorted((self._free[agent], self._rooms[agent]) for agent in self._touched))
        if state in self._dead:
            return False
        rank = self._order[position]
        for agent, room, place in self._choices(self._slots[rank]):
            before = self._rooms[agent]
            is_new = agent not in self._touched
            if is_new:
                self._touched.append(agent)
                self._alike[before].remove(agent)
            self._rooms[agent], self._places[rank] = room, [agent, *place]
            if self._search(position + 1):
                return True
            self._rooms[agent] = before
            if is_new:
                self._touched.remove(agent)
                self._alike[before].insert(0, agent)
        self._dead.add(state)
        return False

    def _choices(self, slots: Slots) -> list[tuple[int, _Room, list[int]]]:
        """Return where a kernel can go, agents that serve others of the gang first; of equal rooms only one."""
        agents = {self._rooms[agent]: agent for agent in reversed(self._touched)}
        for room, alike in self._alike.items():
            if alike and room not in agents:
                agents[room] = alike[0]
        touched = set(self._touched)
        choices = [
            (agent, after, place) for room, agent in agents.items() for after, place in self._options(room, slots)
        ]
        return sorted(choices, key=lambda choice: (choice[0] not in touched, *_left(choice[1]), choice[0]))

    def _options(self, room: _Room, slots: Slots) -> list[tuple[_Room, list[int]]]:
        """Return what is left of a room with the kernel in it, and its GPUs, in each way that makes a difference."""
        kind = self._kinds[room.kind]
        cpu, mem = room.cpu - slots.cpu, room.mem - slots.mem
        if cpu < 0 or mem < 0 or slots.cpu > kind.most_cpu:
            return []
        if not slots.gpu and not slots.fgpu:
            return [(room._replace(cpu=cpu, mem=mem), [NO_GPU, 0, 0])]
        if not slots.gpu and not kind.unit:
            return []
        count = slots.gpu or slots.fgpu // kind.unit
        part = 0 if slots.gpu else slots.fgpu % kind.unit
        empty = [
            gpu
            for gpu, (capacity, cut, serves) in enumerate(kind.gpus)
            if serves and room.gpus[gpu] == capacity and (cut == SHARED or (slots.gpu and cut == UNCUT))
        ]
        if len(empty) < count:
            return []
        # Which GPUs are handed over whole is only searched where they are all alike.
        self._exact = self._exact and (not count or len({kind.gpus[gpu][:2] for gpu in empty}) == 1)
        wholes = empty[:count]
        left = [0 if gpu in wholes else amount for gpu, amount in enumerate(room.gpus)]
        if not part:
            return [(_Room(room.kind, cpu, mem, tuple(left)), [NO_GPU, 0, count, *wholes])]
        options = []
        for gpu, taken in _parts(kind, left, wholes, part):
            gpus = (*left[:gpu], left[gpu] - taken, *left[gpu + 1 :])
            options.append((_Room(room.kind, cpu, mem, gpus), [gpu, taken, count, *wholes]))
        return options


def _parts(kind: _Kind, left: Sequence[int], wholes: Sequence[int], part: int) -> Iterator[tuple[int, int]]:
    """Yield the GPUs that can give the part, and what they give: of GPUs with equal amounts only one."""
    seen = set()
    for gpu, (capacity, cut, serves) in enumerate(kind.gpus):
        state = capacity, cut, left[gpu]
        if serves and cut != UNCUT and left[gpu] >= part and gpu not in wholes and state not in seen:
            seen.add(state)
            yield gpu, left[gpu] if cut == EXCLUSIVE else part


def _demand(slots: Slots) -> tuple[int, ...]:
    return -slots.gpu, -slots.fgpu, -slots.mem, -slots.cpu


def _left(room: _Room) -> tuple[int, ...]:
    return sum(room.gpus), room.mem, room.cpu
