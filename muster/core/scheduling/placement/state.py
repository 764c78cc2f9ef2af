"""`PlacementState`: what is free on the agents of one resource group, and where the next gang goes.

The same input gives the same plan: agents stand in the order of their ids, and the first of equals is taken.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Self

import numpy as np

from muster.core.agents.agent import Agent
from muster.core.model.policy import PACK, PlacementPolicy
from muster.core.model.session import Allocation
from muster.core.scheduling.placement import choose, columns, gang_cache
from muster.core.scheduling.placement.allocations import Allocations, key_of
from muster.core.scheduling.placement.columns import CAPACITY, CUT, EXCLUSIVE, UNCUT
from muster.core.scheduling.placement.compiled import Flags, Floats, Ints
from muster.core.scheduling.placement.corner import cornered, has_corners
from muster.core.scheduling.placement.gang import Gang, Mix
from muster.core.scheduling.placement.hardware import DOMAINS, Domain, Hardware, scarcest_first
from muster.core.scheduling.placement.holdings import Held, Holder, Holdings
from muster.core.scheduling.placement.memory import SCARCEST, Memory
from muster.core.scheduling.placement.misses import Misses, Shortages
from muster.core.scheduling.placement.search import arrangement, enough_in_total
from muster.core.scheduling.placement.weights import typical_array, weight_array
from muster.core.values.slots import Slots, total

_ALL_OPEN: Final = np.zeros(0, dtype=np.bool_)
_NO_NUMBERS: Final = np.zeros(0, dtype=np.int64)
# Limits of the search beside the compiled code: with larger groups or more time, a pass would wait for it.
_MOST_SEARCHED: Final = 256
_STEPS_OF_A_STATE: Final = 2_000
_SHARE_STEPS_OF_A_STATE: Final = 10_000
_STEPS_OF_A_PROOF: Final = 5_000
_NOBODY: Final[frozenset[str]] = frozenset()


class PlacementState:
    """The free capacity of a group's agents. `place`, `take` and `release` change it in place; `copy` keeps it."""

    def __init__(
        self,
        hardware: Hardware,
        free: Ints,
        memory: Memory,
        shut: Mapping[str, str],
        weights: Floats,
        mix: Floats,
        allocations: Allocations | None = None,
    ) -> None:
        self._hardware = hardware
        self._free = free
        self._memory = memory
        self._shut = shut
        self._weights = weights
        self._mix = mix
        self._places: Ints = np.zeros(
            (max(1, memory.most_kernels), columns.FIRST_WHOLE + hardware.width), dtype=np.int64
        )
        self._steps_left = _STEPS_OF_A_STATE
        self._share_steps_left = _SHARE_STEPS_OF_A_STATE
        self._failed: set[tuple[Gang, frozenset[str]]] = set()
        self._shortages = Shortages(hardware, shut)
        self._misses: dict[tuple[Gang, frozenset[str], bool], Misses] = {}
        self._closed: dict[frozenset[str], Flags] = {_NOBODY: _ALL_OPEN}
        self._allocations = Allocations(hardware) if allocations is None else allocations
        self._arrays: choose.Arrays
        self._gather()

    @classmethod
    def of(
        cls,
        agents: Sequence[Agent],
        kernels_by_agent: Mapping[str, Iterable[Holder]],
        policy: PlacementPolicy,
        mix: Mix = Mix(),  # noqa: B008 - a frozen value
        closed: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the agents of one group with these kernels on them. `closed` says of agents that take nothing, why."""
        hardware = Hardware.of(agents)
        shut = {agent.id: closed[agent.id] for agent in hardware.agents if agent.id in closed} if closed else {}
        shut_flags = _flags_of(hardware, shut)
        state = cls(
            hardware,
            np.ascontiguousarray(hardware.unused()),
            Memory(hardware, shut_flags),
            shut,
            weight_array(policy, mix, hardware),
            typical_array(policy, mix, hardware),
        )
        for kernels in kernels_by_agent.values():
            state.take(kernels)
        return state

    @property
    def size(self) -> int:
        """Return the number of agents."""
        return len(self._hardware.agents)

    @property
    def _shut_flags(self) -> Flags:
        return _flags_of(self._hardware, self._shut)

    @property
    def free(self) -> dict[str, Slots]:
        """Return, by agent, what is free in total.

        A request of less fGPU may still find no single GPU that holds it.
        """
        capacity, cut = self._hardware.block(CAPACITY), self._hardware.block(CUT)
        gpus = np.maximum(0, self._free[:, columns.FIRST_GPU :])
        whole = ((gpus == capacity) & (capacity > 0) & (cut != EXCLUSIVE)).sum(axis=1).tolist()
        parts = np.where(cut != UNCUT, gpus, 0).sum(axis=1).tolist()
        amounts = np.maximum(0, self._free[:, : columns.KERNELS]).tolist()
        return {
            agent.id: Slots(cpu=cpu, mem=mem, fgpu=fgpu, gpu=gpu)
            for agent, (cpu, mem), fgpu, gpu in zip(self._hardware.agents, amounts, parts, whole, strict=True)
        }

    def place(self, gang: Gang, closed: frozenset[str] = _NOBODY) -> tuple[Allocation, ...] | None:
        """Take capacity for the whole gang; return the allocations by rank, or None when it does not fit.

        `closed` holds agents that take nothing of this gang.
        """
        if not self._find(gang, closed, takes=True):
            return None
        self._changed()
        return tuple(self._allocations.at(self._places[: len(gang.slots)].tolist()))

    def place_each(self, gangs: Sequence[Gang]) -> list[tuple[Allocation, ...]]:
        """Take capacity for each gang in turn, up to one that is not found any; return what they were given.

        Those that are given something get what `place` would give them one after the other, in one compiled call. It
        does not search as long as `place` does: that may find what this does not.
        """
        return self._place_each(gangs, self, self, ())

    def place_each_beside(
        self, gangs: Sequence[Gang], now: Self, then: Self, in_time: Sequence[bool]
    ) -> list[tuple[Allocation, ...]]:
        """Do as `place_each` in a state that is what is free in two others, of the same agents: `now` and `then`.

        What is placed takes from all three. Of a gang that is gone `in_time` the places are looked for in `now`, and it
        takes none of `then`.
        """
        return self._place_each(gangs, now, then, in_time)

    def _place_each(
        self, gangs: Sequence[Gang], other: Self, then: Self, there: Sequence[bool]
    ) -> list[tuple[Allocation, ...]]:
        keys = list(map(id, gangs))
        different = dict(zip(keys, gangs, strict=True))
        sizes = {key: len(gang.slots) for key, gang in different.items()}
        counts = list(map(sizes.__getitem__, keys))
        places = np.zeros((sum(counts), self._places.shape[1]), dtype=np.int64)
        numbers = self._numbers(keys, different)
        others = _NO_NUMBERS if other is self else other._numbers(keys, different)
        flags = np.array(there, dtype=np.bool_)
        domains = self._hardware.domains
        taken = choose.each_in_turn(
            numbers, self._arrays, others, other._arrays, then._free, flags, _ALL_OPEN, places, domains
        )
        if not taken:
            return []
        self._changed()
        other._changed()
        then._changed()
        ends = list(accumulate(counts[:taken]))
        places = places[: ends[-1]]
        given = self._allocations.at(places[:, : columns.FIRST_WHOLE + places[:, columns.WHOLES].max()].tolist())
        if len(given) == taken:
            return list(zip(given, strict=True))
        return [tuple(given[end - count : end]) for end, count in zip(ends, counts, strict=False)]

    def _numbers(self, keys: Sequence[int], different: Mapping[int, Gang]) -> Ints:
        """Return the numbers of gangs, given by key."""
        numbers = {key: self._number(gang) for key, gang in different.items()}
        return np.array(list(map(numbers.__getitem__, keys)), dtype=np.int64)

    def take_as(self, other: Self, gang: Gang) -> None:
        """Take the places that `place` of the other, of the same agents, found last; the gang has to be that one."""
        choose.take_places(self._number(gang), self._arrays, other._places)
        self._changed()

    def take_least(self, now: Self, then: Self, gang: Gang) -> None:
        """Leave free what is free both `now` and `then`, where `now` has just placed the gang."""
        self._limit(now, then, np.unique(now._places[: len(gang.slots), columns.AGENT]))

    def renew_least(self, now: Self, then: Self, kernels: Iterable[Holder]) -> None:
        """Leave free what is free both `now` and `then`, of the agents that these kernels lie on."""
        self._limit(now, then, np.unique(self.holdings([kernels]).of(0, 1).agents))
        self._failed.clear()

    def _limit(self, now: Self, then: Self, agents: Ints) -> None:
        self._free[agents] = _least(now._free[agents], then._free[agents])
        self._memory.changed(agents)
        self._changed()

    def fits(self, gang: Gang, closed: frozenset[str] = _NOBODY) -> bool:
        """Return whether `place` would find capacity."""
        return self._find(gang, closed, takes=False)

    def excludes(self, gang: Gang) -> bool:
        """Return whether it is proven that nothing places a gang that does not fit: not even in another order.

        For a proof every kernel has to be tried, so a search that ends early proves nothing.
        """
        alone = {slots: Gang((slots,), constraint=gang.constraint) for slots in gang.slots}
        if not all(map(self.fits, alone.values())):
            return True
        units = self._hardware.fixed[:, columns.UNIT]
        if len(alone) == 1 and gang.slots[0].fgpu <= units[units > 0].min(initial=columns.NO_UNIT):
            # Of kernels that are alike, and take whole GPUs or a part of one, each agent holds a number.
            return True
        hardware, steps = self._hardware, _STEPS_OF_A_PROOF
        serves = hardware.gpus_that_serve(gang.constraint)
        for members in self._sets_of_agents(gang):
            if not enough_in_total(hardware, self._free, gang, serves, members):
                continue
            found = arrangement(hardware, self._free, gang, serves, members.tolist(), steps)
            steps -= found.steps
            if not found.proven:
                return False
        return True

    def _sets_of_agents(self, gang: Gang) -> Iterator[Ints]:
        """Yield the agents that might hold the gang together, then those that might alone; of equal ones only one."""
        shape, hardware = self._number(gang), self._hardware
        alone = self._memory.held[self._memory.shapes[shape, gang_cache.ROW]] != gang_cache.RULED_OUT
        if gang.spread:
            domain = hardware.racks if gang.constraint.topology == "one-rack" else hardware.everywhere
            for members in domain.candidates(self._candidates(shape, _ALL_OPEN)):
                alone[members] = False
                yield members
        seen = set()
        for agent in np.flatnonzero(alone).tolist():
            state = self._free[agent].tobytes(), hardware.fixed[agent].tobytes()
            if state not in seen:
                seen.add(state)
                yield np.array([agent], dtype=np.int64)

    def take(self, kernels: Iterable[Holder]) -> None:
        """Take what committed kernels use, even where that is more than there is."""
        self._move(self.holdings([kernels]).of(0, 1), -1)

    def release(self, kernels: Iterable[Holder]) -> None:
        """Give back what `take` or `place` took."""
        self.give_back(self.holdings([kernels]).of(0, 1))

    def holdings(self, sessions: Iterable[Iterable[Holder]]) -> Holdings:
        """Return what the kernels of each session hold here; the same in copies of this state."""
        return Holdings(self._hardware, sessions)

    def give_back(self, held: Held) -> None:
        """Give back what is held; `release` of its kernels."""
        self._move(held, 1)
        self._failed.clear()

    def emptied(self) -> Self:
        """Return the same agents with nothing on them, all of them open, by no policy of the site and no mix."""
        hardware = self._hardware
        memory = Memory(hardware, np.zeros(len(hardware.agents), dtype=np.bool_))
        weights, mix = weight_array(PACK, Mix(), hardware), typical_array(PACK, Mix(), hardware)
        return type(self)(hardware, np.ascontiguousarray(hardware.empty()), memory, {}, weights, mix)

    def by(self, policy: PlacementPolicy, mix: Mix, closed: Mapping[str, str]) -> Self:
        """Return the same agents with the same kernels, but by another policy, with another mix, or others closed."""
        hardware, known = self._hardware, self._allocations
        shut = {agent.id: closed[agent.id] for agent in hardware.agents if agent.id in closed} if closed else {}
        memory = Memory(hardware, _flags_of(hardware, shut))
        weights, typical = weight_array(policy, mix, hardware), typical_array(policy, mix, hardware)
        return type(self)(hardware, self._free.copy(), memory, shut, weights, typical, known)

    def copy(self) -> Self:
        return self._with(self._free.copy())

    def lean(self) -> Self:
        """Return a copy that keeps nothing of what was found out: cheaper, for a few gangs."""
        memory = Memory(self._hardware, self._shut_flags)
        known = self._allocations
        return type(self)(self._hardware, self._free.copy(), memory, self._shut, self._weights, self._mix, known)

    def has_in_total(self, gang: Gang, closed: frozenset[str] = _NOBODY) -> bool:
        """Return whether the agents that the gang may use have as much free as it asks for, wherever it is."""
        candidates = self._memory.held[self._memory.shapes[self._number(gang), gang_cache.ROW]] != gang_cache.RULED_OUT
        if closed:
            candidates &= ~self._flags(closed)
        free, request = np.maximum(0, self._free[candidates]), total(gang.slots)
        capacity = self._hardware.block(CAPACITY)[candidates]
        serves = self._hardware.gpus_that_serve(gang.constraint)[candidates]
        gpus = int(np.where(serves, free[:, columns.FIRST_GPU :], 0).sum())
        # As a number of Python: where no GPU serves, many times that are more than 64 bits hold.
        smallest = int(capacity[serves].min(initial=1 << 60)) if request.gpu else 0
        return bool(
            free[:, columns.CPU].sum() >= request.cpu
            and free[:, columns.MEM].sum() >= request.mem
            and gpus >= request.fgpu + request.gpu * smallest
        )

    def least(self, other: Self) -> Self:
        """Return what is free in both, of the same agents: cpu, memory, and GPU by GPU."""
        return self._with(_least(self._free, other._free))

    def misses(self, gang: Gang, closed: frozenset[str] = _NOBODY, *, beyond: bool = False) -> Misses:
        """Return why `place` finds no capacity. Cached until something changes.

        With `beyond` an agent is near however little it has in all; otherwise only one that could hold what is missing.
        """
        key = gang, closed, beyond
        found = self._misses.get(key)
        if found is None:
            flags = self._flags(closed)
            lying = self._partly(gang, flags) if gang.spread else [[columns.NOWHERE]] * len(gang.slots)
            found = self._shortages.misses(self._free, gang, closed, flags, lying, beyond=beyond)
            self._misses[key] = found
        return found

    def _changed(self) -> None:
        """Forget what was found out about misses."""
        if self._misses:
            self._misses.clear()
            self._shortages.changed()

    def _partly(self, gang: Gang, closed: Flags) -> list[list[int]]:
        """Return the places by rank of the largest part of the gang that agents hold together; NOWHERE for the rest."""
        hardware = self._hardware
        in_racks = gang.constraint.topology == "one-rack"
        best, most = [[columns.NOWHERE]] * len(gang.slots), 0
        for order in ((), scarcest_first(hardware, gang)):
            shape = self._number(gang, order)
            choose.on_one_agent(shape, False, self._arrays, closed, self._places)
            candidates = self._candidates(shape, closed)
            for members in (hardware.racks if in_racks else hardware.everywhere).candidates(candidates):
                ends = np.array([0, len(members)], dtype=np.int64)
                choose.over_agents(shape, False, True, self._arrays, closed, self._places, members, ends)
                places = self._places[: len(gang.slots)]
                held = int((places[:, columns.AGENT] != columns.NOWHERE).sum())
                if held > most:
                    best, most = [list(key_of(place)) for place in places.tolist()], held
        return best

    def _find(self, gang: Gang, closed: frozenset[str], *, takes: bool) -> bool:
        if (gang, closed) in self._failed:
            return False
        shape = self._number(gang)
        flags = self._flags(closed) if closed else _ALL_OPEN
        if choose.on_one_agent(shape, takes, self._arrays, flags, self._places):
            return True
        if self._cornered(gang, shape, flags, takes=takes) or self._spread(gang, shape, flags, takes=takes):
            return True
        self._failed.add((gang, closed))
        return False

    def _number(self, gang: Gang, order: Sequence[int] = ()) -> int:
        """Return the gang's number, with kernels in that order if one is given."""
        number = self._memory.knows((gang, SCARCEST) if order else gang)
        if number is None:
            number = self._memory.learn(gang, order)
            if self._memory.most_kernels > len(self._places):
                self._places = np.zeros((2 * self._memory.most_kernels, self._places.shape[1]), dtype=np.int64)
            self._gather()
        return number

    def _cornered(self, gang: Gang, shape: int, closed: Flags, *, takes: bool) -> bool:
        if not has_corners(gang):
            return False
        candidates = self._memory.held[self._memory.shapes[shape, gang_cache.ROW]] != gang_cache.RULED_OUT
        if len(closed):
            candidates = candidates & ~closed
        serves = self._hardware.gpus_that_serve(gang.constraint)
        places, steps = cornered(self._hardware, self._free, gang, serves, candidates, self._share_steps_left)
        self._share_steps_left -= steps
        if places is None:
            return False
        if takes:
            self._write(shape, places)
        return True

    def _spread(self, gang: Gang, shape: int, closed: Flags, *, takes: bool) -> bool:
        if not gang.spread:
            return False
        hardware = self._hardware
        first, end = DOMAINS[gang.constraint.topology]
        domains = (hardware.racks, hardware.zones, hardware.everywhere)[first:end]
        if self._covered(shape, domains, closed, takes=takes):
            return True
        order = scarcest_first(hardware, gang)
        if order and self._covered(self._number(gang, order), domains, closed, takes=takes):
            return True
        return self._searched(gang, shape, domains[-1], closed, takes=takes)

    def _covered(self, shape: int, domains: Sequence[Domain], closed: Flags, *, takes: bool) -> bool:
        return any(
            choose.over_agents(shape, takes, False, self._arrays, closed, self._places, domain.members, domain.starts)
            for domain in domains
        )

    def _searched(self, gang: Gang, shape: int, domain: Domain, closed: Flags, *, takes: bool) -> bool:
        """Search places for kernels that differ, where covering found none: within limits, as it is not compiled."""
        if len(set(gang.slots)) == 1:
            return False
        serves = self._hardware.gpus_that_serve(gang.constraint)
        candidates = self._candidates(shape, closed)
        for members in domain.candidates(candidates):
            if len(members) > _MOST_SEARCHED or not enough_in_total(self._hardware, self._free, gang, serves, members):
                continue
            found = arrangement(self._hardware, self._free, gang, serves, members.tolist(), self._steps_left)
            self._steps_left -= found.steps
            if found.places is not None:
                if takes:
                    self._write(shape, found.places)
                return True
        return False

    def _candidates(self, shape: int, closed: Flags) -> Flags:
        """Return which agents may hold kernels of a gang that lies on several."""
        candidates: Flags = self._memory.held[self._memory.shapes[shape, gang_cache.ROW]] != gang_cache.RULED_OUT
        candidates &= self._hardware.fixed[:, columns.OVERLAY] != 0
        if len(closed):
            candidates &= ~closed
        return candidates

    def _write(self, shape: int, places: Sequence[Sequence[int]]) -> None:
        """Take places that were found in Python."""
        for rank, place in enumerate(places):
            self._places[rank, : len(place)] = place
        choose.take_places(shape, self._arrays, self._places)

    def _move(self, held: Held, sign: int) -> None:
        if len(held.agents):
            # All at once: to change one number of an array costs as much as a dozen of Python's own.
            np.add.at(self._free.reshape(-1), held.positions, sign * held.amounts)
            self._memory.changed(held.agents)
        self._changed()

    def _flags(self, closed: frozenset[str]) -> Flags:
        flags = self._closed.get(closed)
        if flags is None:
            flags = self._closed[closed] = _flags_of(self._hardware, closed)
        return flags

    def _with(self, free: Ints) -> Self:
        """Return these agents with other amounts free, and with a copy of the cache."""
        memory = self._memory.copy()
        memory.changed(np.flatnonzero((free != self._free).any(axis=1)))
        hardware, known = self._hardware, self._allocations
        state = type(self)(hardware, free, memory, self._shut, self._weights, self._mix, known)
        state._steps_left = self._steps_left  # noqa: SLF001
        state._share_steps_left = self._share_steps_left  # noqa: SLF001
        return state

    def _gather(self) -> None:
        """Gather the arguments of the compiled functions: looked up once, not in each call."""
        self._arrays = (self._free, self._hardware.fixed, self._weights, self._mix, *self._memory.arrays)


def _least(free: Ints, other: Ints) -> Ints:
    """Return what is free in both of the same agents, which have the more kernels of the two."""
    least: Ints = np.minimum(free, other)
    least[:, columns.KERNELS] = np.maximum(free[:, columns.KERNELS], other[:, columns.KERNELS])
    return least


def _flags_of(hardware: Hardware, agents: Collection[str]) -> Flags:
    if not agents:
        return np.zeros(len(hardware.agents), dtype=np.bool_)
    return np.array([agent.id in agents for agent in hardware.agents], dtype=np.bool_)
