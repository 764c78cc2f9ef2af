"""Why a gang finds no place: which agents were not considered, and what the others have too little of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from muster.core.model.wait import NearestMiss
from muster.core.scheduling.placement.columns import (
    CAPACITY,
    CPU,
    CPU_CAPACITY,
    CUT,
    EXCLUSIVE,
    FIRST_GPU,
    MEM,
    MEM_CAPACITY,
    OVERLAY,
    UNCUT,
)
from muster.core.scheduling.placement.compiled import Flags, Ints
from muster.core.scheduling.placement.gang import Gang
from muster.core.scheduling.placement.hardware import Hardware
from muster.core.values.slots import SLOT_NAMES, Slots, total

RESERVED = "reserved"
NO_OVERLAY = "without overlay"
OTHER_MODEL = "GPU model"


@dataclass(frozen=True, slots=True)
class Misses:
    """The causes for which a gang finds no place.

    `filtered` counts, by cause, the agents that were not considered. `exhausted` counts, by slot, those that have too
    little of it for the gang or, where that may spread, for its first kernel. `nearest` has the least missing, measured
    in shares of what it has. Nothing may be missing there, where kernels do not fit side by side.
    """

    considered: int
    filtered: Mapping[str, int] = field(default_factory=dict)
    exhausted: Mapping[str, int] = field(default_factory=dict)
    nearest: NearestMiss | None = None


def misses(hardware: Hardware, free: Ints, gang: Gang, shut: Mapping[str, str], closed: Flags) -> Misses:
    considered, filtered = _considered(hardware, gang, shut, closed)
    if not considered.any():
        return Misses(0, filtered)
    request = gang.slots[0] if gang.spread else total(gang.slots)
    have, capacity = _amounts(hardware, free, gang)
    lacking = np.maximum(0, np.array(_row(request)) - np.maximum(0, have))
    exhausted = {
        name: int(count) for name, count in zip(SLOT_NAMES, (lacking[considered] > 0).sum(axis=0), strict=True) if count
    }
    distance = (lacking / np.maximum(1, capacity)).sum(axis=1)
    nearest = int(np.where(considered, distance, np.inf).argmin())
    missing = {name: int(amount) for name, amount in zip(SLOT_NAMES, lacking[nearest], strict=True) if amount}
    return Misses(int(considered.sum()), filtered, exhausted, NearestMiss(hardware.agents[nearest].id, missing))


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


def _row(slots: Slots) -> Sequence[int]:
    return [getattr(slots, name) for name in SLOT_NAMES]


def _amounts(hardware: Hardware, free: Ints, gang: Gang) -> tuple[Ints, Ints]:
    """Return the amounts (agents, slots) that are free for such a gang, and that there are."""
    gpus = free[:, FIRST_GPU:]
    serves = hardware.gpus_that_serve(gang.constraint)
    capacity = hardware.block(CAPACITY)
    cut = serves & (hardware.block(CUT) != UNCUT)
    whole = serves & (hardware.block(CUT) != EXCLUSIVE)
    have = {
        "cpu": free[:, CPU],
        "mem": free[:, MEM],
        "fgpu": np.where(cut, np.maximum(0, gpus), 0).sum(axis=1),
        "gpu": (whole & (gpus == capacity)).sum(axis=1),
    }
    most = {
        "cpu": hardware.fixed[:, CPU_CAPACITY],
        "mem": hardware.fixed[:, MEM_CAPACITY],
        "fgpu": np.where(cut, capacity, 0).sum(axis=1),
        "gpu": whole.sum(axis=1),
    }
    return (
        np.stack([have[name] for name in SLOT_NAMES], axis=1),
        np.stack([most[name] for name in SLOT_NAMES], axis=1),
    )
