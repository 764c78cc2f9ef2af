"""Why a gang finds no place: which agents were not considered, and what the others have too little of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from muster.core.model.wait import NearestMiss
from muster.core.scheduling.placement.columns import (
    AGENT,
    CAPACITY,
    CPU,
    CPU_CAPACITY,
    CUT,
    EXCLUSIVE,
    FIRST_GPU,
    FIRST_WHOLE,
    MEM,
    MEM_CAPACITY,
    MOST_CPU,
    NO_GPU,
    NO_UNIT,
    NOWHERE,
    OVERLAY,
    PART,
    PART_OF,
    SHARED,
    UNCUT,
    UNIT,
)
from muster.core.scheduling.placement.compiled import Flags, Floats, Ints
from muster.core.scheduling.placement.gang import Constraint, Gang, demanding_first
from muster.core.scheduling.placement.hardware import Hardware
from muster.core.values.slots import SLOT_NAMES, Slots, total

RESERVED = "reserved"
NO_OVERLAY = "without overlay"
OTHER_MODEL = "GPU model"

_FGPU, _GPU = SLOT_NAMES.index("fgpu"), SLOT_NAMES.index("gpu")
# The number of agents that are checked GPU by GPU: those that come closest in total.
_MOST_LOOKED_AT = 16


@dataclass(frozen=True, slots=True)
class Misses:
    """The causes for which a gang finds no place.

    A gang that may spread is covered as far as possible: `held` counts its kernels that have a place then, and the
    rest is left over. Of another one, everything is left over. `filtered` counts, by cause, the agents that were not
    considered. `exhausted` counts, by slot, those that have too little of it: for all that is left over on one agent
    or, where the gang may spread, for any kernel of that. `nearest` has the least missing to hold all that is left
    over, measured in shares of what it has: with that, the gang fits. None where no agent has as much in all. Nothing
    may be missing there, where kernels do not fit side by side.
    """

    considered: int
    filtered: Mapping[str, int] = field(default_factory=dict)
    exhausted: Mapping[str, int] = field(default_factory=dict)
    nearest: NearestMiss | None = None
    held: int = 0


class Shortages:
    """What the agents of a group are short of. What gangs have in common is worked out once: until `changed`."""

    def __init__(self, hardware: Hardware, shut: Mapping[str, str]) -> None:
        """Take the agents, and why which of them take nothing."""
        self._hardware = hardware
        self._shut = shut
        self._considered: dict[tuple[object, ...], tuple[Flags, dict[str, int]]] = {}
        self._supplies: dict[Constraint, _Supply] = {}
        self._supplies_when_empty: dict[Constraint, _Supply] = {}

    def changed(self) -> None:
        """Forget what agents have free."""
        self._supplies.clear()

    def misses(
        self,
        free: Ints,
        gang: Gang,
        closed: frozenset[str],
        closed_flags: Flags,
        places: Sequence[Sequence[int]],
        *,
        beyond: bool,
    ) -> Misses:
        """Return why a gang finds no place; `places` by rank (as in `columns`) are those of as much of it as fits.

        With `beyond`, an agent is near however little it has in all.
        """
        hardware = self._hardware
        considered, filtered = self._open_to(gang, closed, closed_flags)
        if not considered.any():
            return Misses(0, filtered)
        lying = {rank: place for rank, place in enumerate(places) if place[AGENT] != NOWHERE}
        left_over = [slots for rank, slots in enumerate(gang.slots) if rank not in lying]
        if lying:
            free = _beside(free, gang, lying)
            supply = _Supply.of(hardware, free, hardware.gpus_that_serve(gang.constraint))
        else:
            supply = self._supply(self._supplies, free, gang.constraint)
        short = np.count_nonzero(supply.lacking(_least(left_over) if gang.spread else total(left_over))[considered], 0)
        exhausted = {name: int(count) for name, count in zip(SLOT_NAMES, short, strict=True) if count}
        near = considered & _in_rack(hardware, gang, lying)
        nearest = self._nearest(free, supply, gang, left_over, lying, near, beyond=beyond)
        return Misses(int(considered.sum()), filtered, exhausted, nearest, len(lying))

    def _nearest(
        self,
        free: Ints,
        supply: "_Supply",
        gang: Gang,
        left_over: Sequence[Slots],
        lying: Mapping[int, Sequence[int]],
        considered: Flags,
        *,
        beyond: bool,
    ) -> NearestMiss | None:
        hardware, request, serves = self._hardware, total(left_over), supply.serves
        distance: Floats = (supply.lacking(request) / supply.at_least_one).sum(axis=1)
        if not beyond:
            when_empty = self._supply(self._supplies_when_empty, self._empty, gang.constraint)
            too_large = hardware.fixed[:, MOST_CPU] < max(slots.cpu for slots in left_over)
            considered = considered & ~when_empty.lacking(request).any(axis=1) & ~too_large
        distance[~considered] = np.inf
        best: tuple[float, NearestMiss] | None = None
        for _ in range(_MOST_LOOKED_AT):
            agent = int(distance.argmin())
            # GPU by GPU, no agent lacks less than in total.
            if distance[agent] >= (best[0] if best else np.inf):
                break
            distance[agent] = np.inf
            here = [slots for rank, slots in enumerate(gang.slots) if lying.get(rank, (NOWHERE,))[AGENT] == agent]
            if not beyond and _lacks(hardware, self._empty[agent], serves, agent, [*here, *left_over]):
                continue
            missing = _lacks(hardware, free[agent], serves, agent, left_over)
            has = dict(zip(SLOT_NAMES, supply.most[agent].tolist(), strict=True))
            away = sum(amount / max(1, has[name]) for name, amount in missing.items())
            if best is None or away < best[0]:
                best = away, NearestMiss(hardware.agents[agent].id, missing)
        return best[1] if best else None

    @cached_property
    def _empty(self) -> Ints:
        return self._hardware.empty()

    def _supply(self, known: dict[Constraint, "_Supply"], free: Ints, constraint: Constraint) -> "_Supply":
        supply = known.get(constraint)
        if supply is None:
            serves = self._hardware.gpus_that_serve(constraint)
            supply = known[constraint] = _Supply.of(self._hardware, free, serves)
        return supply

    def _open_to(self, gang: Gang, closed: frozenset[str], closed_flags: Flags) -> tuple[Flags, dict[str, int]]:
        asks_for_gpus = any(slots.gpu or slots.fgpu for slots in gang.slots)
        key = gang.constraint, asks_for_gpus, gang.spread, closed
        if key not in self._considered:
            self._considered[key] = _considered(self._hardware, gang, self._shut, closed_flags)
        return self._considered[key]


def _lacks(hardware: Hardware, free: Ints, serves: Flags, agent: int, kernels: Sequence[Slots]) -> dict[str, int]:
    """Return what an agent with so much free lacks to hold the kernels: GPU by GPU, the demanding ones first."""
    unit = int(hardware.fixed[agent, UNIT])
    capacities, cuts = hardware.block(CAPACITY)[agent].tolist(), hardware.block(CUT)[agent].tolist()
    gpus = [max(0, amount) for amount in free[FIRST_GPU:].tolist()]
    allowed = [gpu for gpu in range(len(gpus)) if serves[agent, gpu]]
    request = total(kernels)
    lacks = dict.fromkeys(SLOT_NAMES, 0)
    lacks["cpu"] = max(0, request.cpu - max(0, int(free[CPU])))
    lacks["mem"] = max(0, request.mem - max(0, int(free[MEM])))
    for rank in demanding_first(kernels):
        slots = kernels[rank]
        if not slots.gpu and not unit:
            lacks["fgpu"] += slots.fgpu
            continue
        count, part = (slots.gpu, 0) if slots.gpu else divmod(slots.fgpu, unit)
        empty = [
            gpu
            for gpu in allowed
            if gpus[gpu] == capacities[gpu] and (cuts[gpu] == SHARED or (slots.gpu and cuts[gpu] == UNCUT))
        ][:count]
        for gpu in empty:
            gpus[gpu] = 0
        if slots.gpu:
            lacks["gpu"] += count - len(empty)
        else:
            lacks["fgpu"] += (count - len(empty)) * unit
        if part:
            lacks["fgpu"] += _part_lacks(gpus, [gpu for gpu in allowed if cuts[gpu] != UNCUT], cuts, part)
    return {name: amount for name, amount in lacks.items() if amount}


def _part_lacks(gpus: list[int], cut: Sequence[int], cuts: Sequence[int], part: int) -> int:
    """Take the part from the fullest GPU that can give it, otherwise what the emptiest one has; return the rest."""
    enough = [gpu for gpu in cut if gpus[gpu] >= part]
    if enough:
        gpu = min(enough, key=gpus.__getitem__)
        gpus[gpu] -= gpus[gpu] if cuts[gpu] == EXCLUSIVE else part
        return 0
    gpu = max(cut, key=gpus.__getitem__, default=NO_GPU)
    if gpu == NO_GPU or cuts[gpu] == EXCLUSIVE:
        return part
    had, gpus[gpu] = gpus[gpu], 0
    return part - had


def _beside(free: Ints, gang: Gang, lying: Mapping[int, Sequence[int]]) -> Ints:
    """Return what is free beside the kernels that have a place."""
    beside = free.copy()
    for rank, place in lying.items():
        row = beside[place[AGENT]]
        row[CPU] -= gang.slots[rank].cpu
        row[MEM] -= gang.slots[rank].mem
        if place[PART_OF] != NO_GPU:
            row[FIRST_GPU + place[PART_OF]] -= place[PART]
        for gpu in place[FIRST_WHOLE:]:
            row[FIRST_GPU + gpu] = 0
    return beside


def _in_rack(hardware: Hardware, gang: Gang, lying: Mapping[int, Sequence[int]]) -> Flags:
    """Return the agents that may hold the rest of the gang: in the rack where it lies if it has to be one rack."""
    agents = hardware.agents
    if gang.constraint.topology != "one-rack" or not lying:
        return np.ones(len(agents), dtype=np.bool_)
    rack = agents[next(iter(lying.values()))[AGENT]].rack
    return np.array([agent.rack == rack for agent in agents], dtype=np.bool_)


def _considered(hardware: Hardware, gang: Gang, shut: Mapping[str, str], closed: Flags) -> tuple[Flags, dict[str, int]]:
    """Return the agents to consider, and by cause the number of the others; each counts for one cause."""
    considered = np.ones(len(hardware.agents), dtype=np.bool_)
    filtered: dict[str, int] = {}
    causes = [
        (cause, np.array([shut.get(agent.id) == cause for agent in hardware.agents], dtype=np.bool_))
        for cause in sorted(set(shut.values()))
    ]
    causes.extend(hardware.unfit(gang.constraint).items())
    if gang.constraint.gpu_models and any(slots.gpu or slots.fgpu for slots in gang.slots):
        causes.append((OTHER_MODEL, np.logical_not(hardware.gpus_that_serve(gang.constraint).any(axis=1))))
    if gang.spread:
        causes.append((NO_OVERLAY, hardware.fixed[:, OVERLAY] == 0))
    if len(closed):
        causes.append((RESERVED, closed))
    for cause, agents in causes:
        out = int((considered & agents).sum())
        if out:
            filtered[cause] = out
            considered &= ~agents
    return considered, filtered


def _least(kernels: Sequence[Slots]) -> Slots:
    """Return the least that any of the kernels asks for, slot by slot."""
    return Slots(**{name: min(getattr(slots, name) for slots in kernels) for name in SLOT_NAMES})


@dataclass(frozen=True, slots=True, eq=False)
class _Supply:
    """What agents have, and have free, as (agents, slots); `serves` says which GPUs count.

    Whole GPUs and shares come from one pool: what is handed over whole gives no shares. `uncut` counts the whole ones
    that give none anyway.
    """

    serves: Flags
    have: Ints
    most: Ints
    at_least_one: Floats
    uncut: Ints
    units: Ints

    @classmethod
    def of(cls, hardware: Hardware, free: Ints, serves: Flags) -> "_Supply":
        gpus, capacity, cuts = np.maximum(0, free[:, FIRST_GPU:]), hardware.block(CAPACITY), hardware.block(CUT)
        cut, whole = serves & (cuts != UNCUT), serves & (cuts != EXCLUSIVE)
        empty = whole & (gpus == capacity)
        have = {
            "cpu": np.maximum(0, free[:, CPU]),
            "mem": np.maximum(0, free[:, MEM]),
            "fgpu": np.where(cut, gpus, 0).sum(axis=1),
            "gpu": empty.sum(axis=1),
        }
        most = {
            "cpu": hardware.fixed[:, CPU_CAPACITY],
            "mem": hardware.fixed[:, MEM_CAPACITY],
            "fgpu": np.where(cut, capacity, 0).sum(axis=1),
            "gpu": whole.sum(axis=1),
        }
        in_all = np.stack([most[name] for name in SLOT_NAMES], axis=1)
        return cls(
            serves,
            np.stack([have[name] for name in SLOT_NAMES], axis=1),
            in_all,
            np.maximum(1, in_all).astype(np.float64),
            (empty & ~cut).sum(axis=1),
            np.where(hardware.fixed[:, UNIT] < NO_UNIT, hardware.fixed[:, UNIT], 0),
        )

    def lacking(self, request: Slots) -> Ints:
        """Return the amounts (agents, slots) that agents have too little for the request in total."""
        have = self.have
        if request.gpu:
            have = have.copy()
            handed_over = np.minimum(request.gpu, have[:, _GPU])
            have[:, _FGPU] -= self.units * np.clip(handed_over - self.uncut, 0, None)
        return np.maximum(0, np.array([getattr(request, name) for name in SLOT_NAMES]) - have)
