"""The constant facts of a group's agents, as arrays. Agents stand in the order of their ids."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from muster.core.agents.agent import Agent, Gpu
from muster.core.scheduling.placement.columns import (
    CAPACITY,
    CPU_CAPACITY,
    CUT,
    EXCLUSIVE,
    FILL,
    FIRST_GPU,
    GPUS,
    HEAD,
    LEAST_FRAGMENTING,
    MEM_CAPACITY,
    MODEL,
    MOST_CPU,
    NO_NODE,
    NO_UNIT,
    POLICY,
    SHARED,
    SPREAD,
    UNCUT,
)
from muster.core.scheduling.placement.compiled import Flags, Ints
from muster.core.scheduling.placement.gang import Constraint, Gang, Topology, demanding_first
from muster.core.values.slots import Slots

_MOST_KNOWN_PARTS = 4096
_ANY_NUMBER = 1 << 30
_CHOICES = {"policy": POLICY, "fill": FILL, "spread": SPREAD, "fragmentation": LEAST_FRAGMENTING}
_facts = attrgetter("units", "fraction", "exclusive", "numa_node", "model")
_uuid = attrgetter("uuid")


@dataclass(frozen=True, slots=True)
class Domain:
    """The racks (or zones) that the site names: `members[starts[i]:starts[i + 1]]` are agents of the i-th."""

    members: Ints
    starts: Ints

    @classmethod
    def of(cls, names: Sequence[str]) -> "Domain":
        places = sorted({name for name in names if name})
        number = {name: index for index, name in enumerate(places)}
        numbers = np.array([number.get(name, -1) for name in names], dtype=np.int64)
        members = np.argsort(numbers, kind="stable")[np.count_nonzero(numbers < 0) :]
        counts = np.bincount(numbers[members], minlength=len(places))
        return cls(members, np.concatenate(([0], np.cumsum(counts))).astype(np.int64))

    def candidates(self, agents: Flags) -> Iterator[Ints]:
        """Yield those of the agents that lie in each rack or zone that has any."""
        for first, last in pairwise(self.starts.tolist()):
            members = self.members[first:last]
            members = members[agents[members]]
            if len(members):
                yield members


DOMAINS: Final[Mapping[Topology, tuple[int, int]]] = {"any": (2, 3), "prefer-rack": (0, 3), "one-rack": (0, 1)}
"""By topology, the first and the end of the kinds of domains that are tried in turn: racks, zones, and all agents."""


class Gpus(NamedTuple):
    """An agent's GPUs without their UUIDs, one value for all agents with the same.

    `nodes` holds each GPU's NUMA node if known, `blocks` the columns of the agent in the four blocks of `fixed`.
    """

    capacities: tuple[int, ...]
    nodes: tuple[tuple[int, ...], ...]
    unit: int
    alike: bool
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """A group's hardware. `fixed` is (agents, columns) of int64.

    Its units: cpu in milli-cores, mem in bytes, GPUs in thousandths of a unit. `gpus` holds, for each agent, its id and
    its GPUs' UUIDs and what else is known of them, at hand for allocations.
    """

    agents: tuple[Agent, ...]
    index: dict[str, int]
    fixed: Ints
    width: int
    models: tuple[str, ...]
    gpus: tuple[tuple[str, tuple[str, ...], Gpus], ...]
    racks: Domain
    zones: Domain
    everywhere: Domain
    gpus_of_model: dict[str, int]
    known_parts: dict[Slots, float] = field(default_factory=dict)
    """A cache of `parts_that_serve`."""

    @property
    def domains(self) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints]:
        """Return the members and starts of the racks, of the zones, and of all agents as one domain."""
        racks, zones, everywhere = self.racks, self.zones, self.everywhere
        return racks.members, racks.starts, zones.members, zones.starts, everywhere.members, everywhere.starts

    @classmethod
    def of(cls, agents: Sequence[Agent]) -> "Hardware":
        known = tuple(sorted(agents, key=attrgetter("id")))
        width = max((len(agent.gpus) for agent in known), default=0) or 1
        # Most agents have the same GPUs as another one: what follows from these is worked out once.
        by_facts: dict[tuple[tuple[Any, ...], ...], int] = {}
        numbers = np.array(
            [by_facts.setdefault(tuple(map(_facts, agent.gpus)), len(by_facts)) for agent in known], dtype=np.int64
        )
        _, examples, times = np.unique(numbers, return_index=True, return_counts=True)
        different = [known[example].gpus for example in examples.tolist()]
        counts = Counter[str]()
        for example, count in zip(different, times.tolist(), strict=True):
            for gpu in example:
                counts[gpu.model] += count
        models = {model: index for index, model in enumerate(sorted(counts))}
        sets = [_gpus(example, models, width) for example in different]
        mine = [sets[number] for number in numbers.tolist()]
        heads = [
            (
                agent.most_cpu_of_a_kernel,
                len(gpus.capacities),
                gpus.unit,
                agent.on_overlay,
                agent.capacity.cpu,
                agent.capacity.mem,
                gpus.alike,
                _CHOICES[agent.fgpu_choice],
            )
            for agent, gpus in zip(known, mine, strict=True)
        ]
        blocks = np.array([gpus.blocks for gpus in sets], dtype=np.int64).reshape(len(sets), 4 * width)
        return cls(
            known,
            {agent.id: number for number, agent in enumerate(known)},
            np.hstack((np.array(heads, dtype=np.int64).reshape(len(known), HEAD), blocks[numbers])),
            width,
            tuple(models),
            tuple([(agent.id, tuple(map(_uuid, agent.gpus)), gpus) for agent, gpus in zip(known, mine, strict=True)]),
            Domain.of([agent.rack for agent in known]),
            Domain.of([agent.zone for agent in known]),
            Domain.of(["all"] * len(known)),
            dict(counts),
        )

    def block(self, which: int) -> Ints:
        """Return one of the four blocks of GPU columns, (agents, width)."""
        return self.fixed[:, HEAD + which * self.width : HEAD + (which + 1) * self.width]

    def empty(self) -> Ints:
        """Return what is free with nothing on the agents: cpu, mem, kernels (counted up from 0), then each GPU."""
        counted = np.zeros((len(self.agents), 1), dtype=np.int64)
        return np.hstack((self.fixed[:, CPU_CAPACITY : MEM_CAPACITY + 1], counted, self.block(CAPACITY)))

    def unused(self) -> Ints:
        """Return what can be given with nothing on the agents, in the columns of `empty`.

        A GPU in quarantine gives nothing, and gets nothing back from the kernels that leave it.
        """
        free = self.empty()
        for number, agent in enumerate(self.agents):
            for place, gpu in enumerate(agent.gpus):
                if gpu.quarantine:
                    free[number, FIRST_GPU + place] = 0
        return free

    def unfit(self, constraint: Constraint) -> dict[str, Flags]:
        """Return, by cause, the agents that a constraint rules out. GPU models do not: they are judged GPU by GPU."""
        causes: dict[str, Flags] = {}
        if constraint.agents:
            chosen = set(constraint.agents)
            causes["not designated"] = np.array([agent.id not in chosen for agent in self.agents], dtype=np.bool_)
        if constraint.exclude_agents:
            left_out = set(constraint.exclude_agents)
            causes["excluded"] = np.array([agent.id in left_out for agent in self.agents], dtype=np.bool_)
        if constraint.labels:
            required = dict(constraint.labels).items()
            causes["label"] = np.array(
                [not required <= agent.choosable_labels.items() for agent in self.agents], dtype=np.bool_
            )
        return causes

    def gpus_that_serve(self, constraint: Constraint) -> Flags:
        """Return the GPUs whose model a constraint allows, (agents, width)."""
        takes = np.array([*map(constraint.takes_model, self.models), False], dtype=np.bool_)
        exist = self.block(CAPACITY) > 0
        return exist & takes[self.block(MODEL)]


def parts_that_serve(hardware: Hardware, requests: Sequence[Slots]) -> list[float]:
    """Return for each request for GPUs the part of all of them that such requests could take, were the agents empty.

    Whichever models these are. 0 where no agent could hold one.
    """
    known = hardware.known_parts
    unknown = [slots for slots in dict.fromkeys(requests) if slots not in known]
    if unknown:
        if len(known) > _MOST_KNOWN_PARTS:
            known.clear()
        known.update(zip(unknown, _parts_that_serve(hardware, unknown), strict=True))
    return [known[slots] for slots in requests]


def _parts_that_serve(hardware: Hardware, requests: Sequence[Slots]) -> list[float]:
    fixed, cut, capacity = hardware.fixed, hardware.block(CUT), hardware.block(CAPACITY)
    gpus = fixed[:, GPUS]
    wholes = ((capacity > 0) & (cut != EXCLUSIVE)).sum(axis=1)
    in_parts = (capacity > 0) & (cut != UNCUT)
    parts = np.where(in_parts, capacity, 0).sum(axis=1)
    of_one = parts / np.maximum(1, in_parts.sum(axis=1))
    found = []
    for slots in requests:
        times = np.where(fixed[:, MOST_CPU] >= slots.cpu, _ANY_NUMBER, 0)
        for amount, there in (
            (slots.cpu, fixed[:, CPU_CAPACITY]),
            (slots.mem, fixed[:, MEM_CAPACITY]),
            (slots.gpu, wholes),
            (slots.fgpu, parts),
        ):
            if amount:
                times = np.minimum(times, there // amount)
        worth = slots.gpu + (slots.fgpu / np.maximum(1, of_one) if slots.fgpu else 0.0)
        found.append(float(np.minimum(gpus, times * worth).sum() / max(1, gpus.sum())))
    return found


def scarcest_first(hardware: Hardware, gang: Gang) -> list[int]:
    """Return the ranks so that kernels which the fewest agents could hold come first; equal requests are together.

    Empty where that is the order of `demanding_first` anyway.
    """
    if len(set(gang.slots)) == 1:
        return []
    serves = hardware.gpus_that_serve(gang.constraint)
    cut, capacity = hardware.block(CUT), hardware.block(CAPACITY)
    wholes = (serves & (cut != EXCLUSIVE)).sum(axis=1)
    parts = np.where(serves & (cut != UNCUT), capacity, 0).sum(axis=1)
    holders = {
        slots: int(
            (
                (hardware.fixed[:, MOST_CPU] >= slots.cpu)
                & (hardware.fixed[:, CPU_CAPACITY] >= slots.cpu)
                & (hardware.fixed[:, MEM_CAPACITY] >= slots.mem)
                & (wholes >= slots.gpu)
                & (parts >= slots.fgpu)
            ).sum()
        )
        for slots in set(gang.slots)
    }
    usual = demanding_first(gang.slots)
    order = sorted(usual, key=lambda rank: holders[gang.slots[rank]])
    return [] if order == usual else order


def _gpus(gpus: Sequence[Gpu], models: Mapping[str, int], width: int) -> Gpus:
    capacities, cuts = tuple([gpu.capacity for gpu in gpus]), [_cut(gpu) for gpu in gpus]
    nodes, numbers = [gpu.numa_node for gpu in gpus], [models[gpu.model] for gpu in gpus]
    blank = [0] * (width - len(gpus))
    numbered = [NO_NODE if node is None else node for node in nodes]
    return Gpus(
        capacities,
        tuple([() if node is None else (node,) for node in nodes]),
        _unit(capacities, cuts),
        len(set(zip(capacities, cuts, numbers, strict=True))) < 2,
        (*capacities, *blank, *cuts, *blank, *numbered, *blank, *numbers, *blank),
    )


def _cut(gpu: Gpu) -> int:
    if gpu.exclusive:
        return EXCLUSIVE
    return SHARED if gpu.units else UNCUT


def _unit(capacities: Sequence[int], cuts: Sequence[int]) -> int:
    """Return the amount beyond which requests take whole GPUs of the agent; 0 where it gives no shares."""
    if EXCLUSIVE in cuts:
        return NO_UNIT
    return min([capacity for capacity, cut in zip(capacities, cuts, strict=True) if cut], default=0)
