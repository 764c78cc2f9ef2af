"""Why a gang finds no place: which agents were not considered, and what the others have too little of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
from muster.core.scheduling.placement.gang import Gang, demanding_first
from muster.core.scheduling.placement.hardware import Hardware
from muster.core.values.slots import SLOT_NAMES, Slots, total

RESERVED = "reserved"
NO_OVERLAY = "without overlay"
OTHER_MODEL = "GPU model"

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


def misses(
    hardware: Hardware,
    free: Ints,
    gang: Gang,
    shut: Mapping[str, str],
    closed: Flags,
    places: Sequence[Sequence[int]],
    *,
    beyond: bool,
) -> Misses:
    """Return why a gang finds no place; `places` by rank (as in `columns`) are those of as much of it as fits.

    With `beyond`, an agent is near however little it has in all.
    """
    considered, filtered = _considered(hardware, gang, shut, closed)
    if not considered.any():
        return Misses(0, filtered)
    lying = {rank: place for rank, place in enumerate(places) if place[AGENT] != NOWHERE}
    left_over = [slots for rank, slots in enumerate(gang.slots) if rank not in lying]
    serves = hardware.gpus_that_serve(gang.constraint)
    if lying:
        free = _beside(free, gang, lying)
    lacking, _ = _lacking(hardware, free, serves, _least(left_over) if gang.spread else total(left_over))
    short = (lacking[considered] > 0).sum(axis=0)
    exhausted = {name: int(count) for name, count in zip(SLOT_NAMES, short, strict=True) if count}
    near = considered & _in_rack(hardware, gang, lying)
    nearest = _nearest(hardware, free, serves, gang, left_over, lying, near, beyond=beyond)
    return Misses(int(considered.sum()), filtered, exhausted, nearest, len(lying))


def _nearest(
    hardware: Hardware,
    free: Ints,
    serves: Flags,
    gang: Gang,
    left_over: Sequence[Slots],
    lying: Mapping[int, Sequence[int]],
    considered: Flags,
    *,
    beyond: bool,
) -> NearestMiss | None:
    lacking, capacity = _lacking(hardware, free, serves, total(left_over))
    distance: Floats = (lacking / np.maximum(1, capacity)).sum(axis=1)
    if not beyond:
        never, _ = _lacking(hardware, hardware.empty(), serves, total(left_over))
        too_large = hardware.fixed[:, MOST_CPU] < max(slots.cpu for slots in left_over)
        considered = considered & ~never.any(axis=1) & ~too_large
    distance = np.where(considered, distance, np.inf)
    best: tuple[float, NearestMiss] | None = None
    for agent in np.argsort(distance, kind="stable")[:_MOST_LOOKED_AT].tolist():
        if not considered[agent]:
            break
        here = [slots for rank, slots in enumerate(gang.slots) if lying.get(rank, (NOWHERE,))[AGENT] == agent]
        if not beyond and _lacks(hardware, hardware.empty()[agent], serves, agent, [*here, *left_over]):
            continue
        missing = _lacks(hardware, free[agent], serves, agent, left_over)
        has = dict(zip(SLOT_NAMES, capacity[agent].tolist(), strict=True))
        away = sum(amount / max(1, has[name]) for name, amount in missing.items())
        if best is None or away < best[0]:
            best = away, NearestMiss(hardware.agents[agent].id, missing)
    return best[1] if best else None


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


def _lacking(hardware: Hardware, free: Ints, serves: Flags, request: Slots) -> tuple[Ints, Ints]:
    """Return the amounts (agents, slots) that agents have too little for the request in total, and that they have.

    Whole GPUs and shares come from one pool: what is handed over whole gives no shares.
    """
    gpus, capacity, cuts = np.maximum(0, free[:, FIRST_GPU:]), hardware.block(CAPACITY), hardware.block(CUT)
    cut, whole = serves & (cuts != UNCUT), serves & (cuts != EXCLUSIVE)
    empty = (whole & (gpus == capacity)).sum(axis=1)
    shares = np.where(cut, gpus, 0).sum(axis=1)
    units = np.where(hardware.fixed[:, UNIT] < NO_UNIT, hardware.fixed[:, UNIT], 0)
    uncut = (whole & ~cut & (gpus == capacity)).sum(axis=1)
    shares = shares - units * np.clip(np.minimum(request.gpu, empty) - uncut, 0, None)
    have = {"cpu": np.maximum(0, free[:, CPU]), "mem": np.maximum(0, free[:, MEM]), "fgpu": shares, "gpu": empty}
    most = {
        "cpu": hardware.fixed[:, CPU_CAPACITY],
        "mem": hardware.fixed[:, MEM_CAPACITY],
        "fgpu": np.where(cut, capacity, 0).sum(axis=1),
        "gpu": whole.sum(axis=1),
    }
    wanted = np.array([getattr(request, name) for name in SLOT_NAMES])
    amounts = np.stack([have[name] for name in SLOT_NAMES], axis=1)
    return np.maximum(0, wanted - amounts), np.stack([most[name] for name in SLOT_NAMES], axis=1)
