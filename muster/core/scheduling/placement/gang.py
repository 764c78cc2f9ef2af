"""What a session requires of its place. Sessions with equal requirements share one value, and so one answer."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, TypeVar

from muster.core.agents.gpu_model import is_of_model
from muster.core.model.session import Kernel, Session
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.slots import Slots

Key = TypeVar("Key")
Topology = Literal["any", "prefer-rack", "one-rack"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """The agents and GPUs that may serve; an empty field excludes none.

    A GPU serves when its model's name holds one of `gpu_models` (core/agents/gpu_model.py); an agent when it has all
    `labels`, is one of `agents` and none of `exclude_agents`.
    """

    gpu_models: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    agents: tuple[str, ...] = ()
    exclude_agents: tuple[str, ...] = ()
    topology: Topology = "prefer-rack"

    def takes_model(self, model: str) -> bool:
        return not self.gpu_models or any(is_of_model(model, name) for name in self.gpu_models)


@dataclass(frozen=True, slots=True)
class Gang:
    """The kernels' slots in rank order. With `spread` it may lie on several agents that an overlay network joins."""

    slots: tuple[Slots, ...]
    spread: bool = False
    constraint: Constraint = Constraint()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.slots, self.spread, self.constraint)))

    def __hash__(self) -> int:
        return self._hash


_ANYWHERE = {topology: Constraint(topology=topology) for topology in ("any", "prefer-rack", "one-rack")}
_gangs: dict[tuple[tuple[Slots, ...], bool, Constraint], Gang] = {}
# By plain numbers, with the identity of a constraint that lasts: to hash and to compare slots costs ten times as much.
_uniform: dict[tuple[int, ...], Gang] = {}
_MOST_GANGS = 1 << 16


# By identity of a session's kernels: comparing them would cost more than making the gang anew. A queue of a hundred
# thousand that has not changed looks up its gangs again in each pass.
_known: dict[int, tuple[tuple[Kernel, ...], SessionSpec, Gang]] = {}
_MOST_KNOWN = 1 << 17


def gang_of(session: Session, overlay: bool) -> Gang:
    """Return the session's gang; `overlay` says whether an overlay network could join agents now."""
    kernels, spec = session.kernels, session.spec
    known = _known.get(id(kernels))
    if known is None or known[0] is not kernels or known[1] is not spec:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[id(kernels)] = kernels, spec, _gang_of(kernels, spec)
    gang = known[2]
    return gang if overlay or not gang.spread else on_one_agent(gang)


def gang_of_size(session: Session, size: int, overlay: bool) -> Gang:
    """Return the gang of a waiting elastic session with so many kernels."""
    gang = _gang_of(session.possible_kernels[:size], session.spec)
    return gang if overlay or not gang.spread else on_one_agent(gang)


def on_one_agent(gang: Gang) -> Gang:
    """Return the same kernels, but all on one agent."""
    return _shared_gang(gang.slots, False, gang.constraint)


def _gang_of(kernels: tuple[Kernel, ...], spec: SessionSpec) -> Gang:
    constraint = _ANYWHERE[spec.topology]
    if spec.gpu_models or spec.labels or spec.agents or spec.exclude_agents:
        constraint = Constraint(
            tuple(sorted(spec.gpu_models)),
            tuple(sorted(spec.labels.items())),
            tuple(sorted(spec.agents)),
            tuple(sorted(spec.exclude_agents)),
            spec.topology,
        )
    spread = len(kernels) > 1 and spec.cluster_mode == "multi-node"
    if spec.roles:
        return _shared_gang(tuple([kernel.slots for kernel in kernels]), spread, constraint)
    # Without roles all kernels ask for the same: one of them is enough to know the gang.
    first = kernels[0].slots
    key = first.cpu, first.mem, first.fgpu, first.gpu, len(kernels), spread, id(constraint)
    gang = _uniform.get(key)
    if gang is None or gang.constraint is not constraint:
        gang = _shared_gang((first,) * len(kernels), spread, constraint)
        if constraint in _ANYWHERE.values():
            _keep(_uniform, key, gang)
    return gang


def _shared_gang(slots: tuple[Slots, ...], spread: bool, constraint: Constraint) -> Gang:
    key = slots, spread, constraint
    gang = _gangs.get(key)
    return _keep(_gangs, key, Gang(slots, spread, constraint)) if gang is None else gang


def _keep(gangs: dict[Key, Gang], key: Key, gang: Gang) -> Gang:
    if len(gangs) >= _MOST_GANGS:
        gangs.clear()
    gangs[key] = gang
    return gang


def demanding_first(slots: Sequence[Slots]) -> list[int]:
    """Return the ranks in the order in which kernels are laid down; equal requests are together."""
    return sorted(
        range(len(slots)), key=lambda rank: (-slots[rank].gpu, -slots[rank].fgpu, -slots[rank].mem, -slots[rank].cpu)
    )


_MOST_TYPICAL = 64


@dataclass(frozen=True, slots=True)
class Typical:
    """A request that sessions often make, for one kernel; `weight` says how often, in any measure."""

    slots: Slots
    gpu_models: tuple[str, ...] = ()
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Mix:
    """The requests that sessions make: the `typical` ones, and the next `others` by how often they are made.

    Of the others those count that few agents could hold (`weights.typical_array`).
    """

    typical: tuple[Typical, ...] = ()
    others: tuple[Typical, ...] = ()


def mix_of(gangs: Iterable[Gang] | Mapping[Gang, int], most: int = 256) -> Mix:
    """Return the typical requests and others, in all at most `most`; `gangs` as for `typical_requests`."""
    requests, number = _most_frequent(gangs, most)
    typical = min(number, _MOST_TYPICAL)
    return Mix(requests[:typical], requests[typical:])


def typical_requests(gangs: Iterable[Gang] | Mapping[Gang, int], most: int = _MOST_TYPICAL) -> tuple[Typical, ...]:
    """Return the most frequent requests of kernels that together are 95 % of all of them, at most `most`.

    `gangs` are the requested ones, or how often each was. Of equally frequent requests the larger come first, so that
    the order of `gangs` has no bearing.
    """
    requests, number = _most_frequent(gangs, most)
    return requests[:number]


def _most_frequent(gangs: Iterable[Gang] | Mapping[Gang, int], most: int) -> tuple[tuple[Typical, ...], int]:
    """Return the most frequent requests, and how many of them together are 95 % of all."""
    counts: dict[tuple[Slots, tuple[str, ...]], int] = {}
    for gang, times in Counter(gangs).items():
        for slots in gang.slots:
            key = slots, gang.constraint.gpu_models
            counts[key] = counts.get(key, 0) + times
    first = sorted(counts.items(), key=_order)[:most]
    enough = 0.95 * sum(counts.values())
    counted = accumulate((count for _, count in first), initial=0)
    typical = sum(before < enough for before, _ in zip(counted, first, strict=False))
    return tuple([Typical(slots, models, float(count)) for (slots, models), count in first]), typical


def _order(item: tuple[tuple[Slots, tuple[str, ...]], int]) -> tuple[object, ...]:
    (slots, models), count = item
    return -count, -slots.gpu, -slots.fgpu, -slots.mem, -slots.cpu, models
