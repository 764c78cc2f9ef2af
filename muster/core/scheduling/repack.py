"""Place a pass's gangs anew, together with one that does not fit beside them.

Each gang goes where it costs least when its turn comes. The first ones may so leave no place for one that would fit
beside them. Nothing has been started yet, so they can be moved. A few other orders are tried, and the
first in which all of them fit is taken.
"""

from collections.abc import Iterable, Iterator, KeysView, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Final, NamedTuple

from muster.core.model.plan import Placement
from muster.core.model.session import AllocatedSlots, Allocation, Session
from muster.core.scheduling.placement import Gang, PlacementState, on_one_agent
from muster.core.values.columns import values_of
from muster.core.values.slots import Slots, total

MOST_SESSIONS: Final = 200
"""So many sessions that the pass placed last are placed anew; those before them stay where they are."""
MOST_WORK: Final = 500_000
"""The work of one pass's trials: the gangs that are placed, and the agents that each different one is compared with."""

Allocations = tuple[Allocation, ...]
_id = attrgetter("id")


class Placed(NamedTuple):
    """A gang with its allocations by rank, and the agents that are closed to it."""

    gang: Gang
    closed: frozenset[str]
    allocations: Allocations

    @property
    def kernels(self) -> Iterator[AllocatedSlots]:
        return map(AllocatedSlots, self.gang.slots, self.allocations)

    @property
    def agents(self) -> int:
        return len({given.agent_id for given in self.allocations})


def placed_each(
    gangs: Iterable[Gang], closed: Iterable[frozenset[str]], allocations: Iterable[Allocations]
) -> Iterator[Placed]:
    """Return `Placed` of each gang: by compiled code, for there are many."""
    return map(tuple.__new__, repeat(Placed), zip(gangs, closed, allocations, strict=True))


def placements(sessions: Sequence[Session], placed: Sequence[Placed]) -> list[Placement]:
    """Return what a plan says of sessions that are placed so."""
    by_kernel = [
        {session.kernels[0].id: allocations[0]}
        if len(allocations) == 1
        else dict(zip(map(_id, session.possible_kernels), allocations, strict=False))
        for session, (_, _, allocations) in zip(sessions, placed, strict=True)
    ]
    modes = ["multi-node" if each[0].spread and each.agents > 1 else "single-node" for each in placed]
    return values_of(Placement, list(map(_id, sessions)), modes, by_kernel)


class Ahead:
    """The requests of gangs that wait already, each with the agents that are closed to it."""

    def __init__(self) -> None:
        self._closed: dict[Gang, list[frozenset[str]]] = {}

    def add(self, gang: Gang, closed: frozenset[str]) -> None:
        known = self._closed.setdefault(gang, [])
        if closed not in known:
            known.append(closed)

    def __contains__(self, request: tuple[Gang, frozenset[str]]) -> bool:
        gang, closed = request
        return closed in self._closed.get(gang, ())

    @property
    def gangs(self) -> KeysView[Gang]:
        return self._closed.keys()

    def fit_in(self, state: PlacementState) -> bool:
        """Return whether any of them fits."""
        return any(state.fits(gang, closed) for gang, each in self._closed.items() for closed in each)


class Repacker:
    """The trials of one pass; `left` is the work that they may still make."""

    def __init__(self, left: int = MOST_WORK) -> None:
        self._left = left

    def repacked(
        self,
        state: PlacementState,
        placed: Sequence[Placed],
        gang: Gang,
        closed: frozenset[str],
        ahead: Ahead,
    ) -> list[Placed] | None:
        """Place the gang, and what was placed last anew; return all that is placed then, the gang last.

        None, with nothing changed, where no trial succeeds. What lay on one agent stays on one, and what lay on several
        comes to lie on no more. None that is `ahead` may fit then: they were first.
        """
        first = max(0, len(placed) - MOST_SESSIONS)
        moving = placed[first:]
        found = self._found(state, moving, gang, closed, ahead)
        if found is None:
            return None
        moved = [each._replace(allocations=given) for each, given in zip(moving, found, strict=False)]
        moved.append(Placed(gang, closed, found[-1]))
        state.release(kernel for each in moving for kernel in each.kernels)
        state.take(kernel for each in moved for kernel in each.kernels)
        return [*placed[:first], *moved]

    def _found(
        self,
        state: PlacementState,
        placed: Sequence[Placed],
        gang: Gang,
        closed: frozenset[str],
        ahead: Ahead,
    ) -> list[Allocations] | None:
        """Return other allocations of what was placed, and then the gang's. Changes nothing."""
        least = len(ahead.gangs) * state.size
        if not placed or self._left < least or not state.has_in_total(gang, closed):
            return None
        different = {gang, *(each.gang for each in placed), *ahead.gangs}
        work = len(placed) + 1 + len(different) * state.size
        if self._left < work:
            return None
        start = state.lean()
        start.release(kernel for each in placed for kernel in each.kernels)
        parts = [(each.gang if each.agents > 1 else on_one_agent(each.gang), each.closed) for each in placed]
        parts.append((gang, closed))
        most_agents = [*(each.agents for each in placed), len(gang.slots)]
        for order in _orders([part for part, _ in parts]):
            if self._left < work:
                return None
            self._left -= work
            trial = start.lean()
            found = _placed(trial, parts, most_agents, order)
            if found is not None and not ahead.fit_in(trial):
                return found
        return None


def _placed(
    trial: PlacementState,
    parts: Sequence[tuple[Gang, frozenset[str]]],
    most_agents: Sequence[int],
    order: Sequence[int],
) -> list[Allocations] | None:
    found: dict[int, Allocations] = {}
    for number in order:
        allocations = trial.place(*parts[number])
        if allocations is None or len({given.agent_id for given in allocations}) > most_agents[number]:
            return None
        found[number] = allocations
    return [found[number] for number in range(len(parts))]


def _orders(gangs: Sequence[Gang]) -> Iterator[list[int]]:
    """Yield orders of the gangs by their numbers, each once; the last of the gangs is the one that did not fit."""
    numbers = range(len(gangs))
    sums = [total(gang.slots) for gang in gangs]
    largest = [max(map(_size, gang.slots)) for gang in gangs]
    seen = set()
    for order in (
        [numbers[-1], *numbers[:-1]],
        sorted(numbers, key=lambda n: (gangs[n].spread, *_down(_size(sums[n])))),
        sorted(numbers, key=lambda n: _down(_size(sums[n]))),
        sorted(numbers, key=lambda n: (_down(largest[n]), gangs[n].spread, _down(_size(sums[n])))),
        sorted(numbers, key=lambda n: (gangs[n].spread, -sums[n].cpu, *_down(_size(sums[n])))),
        sorted(numbers, key=lambda n: (-sums[n].cpu / (sums[n].gpu + sums[n].fgpu / 1000 + 1), n)),
        list(reversed(numbers)),
    ):
        if tuple(order) not in seen:
            seen.add(tuple(order))
            yield order


def _size(slots: Slots) -> tuple[int, ...]:
    return 1000 * slots.gpu + slots.fgpu, slots.mem, slots.cpu


def _down(size: Sequence[int]) -> tuple[int, ...]:
    return tuple(-amount for amount in size)
