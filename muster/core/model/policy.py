"""What a site decides about its queues: order, placement, limits, backfill, preemption. Frozen values only."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from muster.core.model.session import Session
from muster.core.values.slots import Slots

EACH = "*"
"""The key, in a mapping of limits, of all that have no entry of their own."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """A resource group as an order may look at it. `allocated` is kept up to date while the pass places sessions.

    `usage` holds, by owner, the mean dominant share that they recently held, older times counting for less
    (`muster.core.usage.by_owner`). `shares` holds the owners' share weights, 1 for owners that are not named.
    """

    now: float
    capacity: Slots
    allocated: Mapping[str, Slots]
    usage: Mapping[str, float] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)

    def dominant_share(self, owner: str) -> float:
        """Return the largest part of any slot of the group that the owner has now (Ghodsi et al., NSDI 2011)."""
        held = self.allocated.get(owner)
        return 0.0 if held is None else dominant_share(held, self.capacity)


def dominant_share(held: Slots, capacity: Slots) -> float:
    """Return the largest part of any slot of `capacity`."""
    return max(
        held.cpu / capacity.cpu if capacity.cpu else 0.0,
        held.mem / capacity.mem if capacity.mem else 0.0,
        held.fgpu / capacity.fgpu if capacity.fgpu else 0.0,
        held.gpu / capacity.gpu if capacity.gpu else 0.0,
    )


_submitted_at = attrgetter("submitted_at")

Order = Callable[[Sequence[Session], QueueView], Iterable[Session]]
"""Sessions of one priority and one resource group in the order in which they are tried.

It may be a generator that reads the view again after each session that it gave.
"""


def by_arrival(sessions: Sequence[Session], view: QueueView) -> Iterable[Session]:
    """Return the sessions first in, first out; those submitted together by `array_index`, then by id."""
    del view
    ordered = sorted(sessions, key=_submitted_at)
    if len(set(map(_submitted_at, ordered))) == len(ordered):
        return ordered
    return sorted(ordered, key=lambda session: (session.submitted_at, session.array_index or 0, session.id))


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """The weights of the terms of a placement's cost; the possible place with the least cost is taken.

    `fragmentation`: growth of the GPUs' worth that typical requests could not use (Weng et al., USENIX ATC 2023).
    `dearth`: how much more those requests weigh in it that no more than half of the GPUs could ever serve, rare ones
    too: with 1, as many times more as all GPUs are more than these.
    `starvation`: growth of the part of the agent's GPUs for which it has no cpu left in proportion.
    `imbalance`: growth of how far the free part of its cpu strays from that of its GPUs.
    `scarcity`: GPUs' worth taken, times what requests that name GPU models ask of that one beside what there is.
    `left_over`: GPUs' worth that stays free on it (best fit; negative spreads), then on a shared GPU, then cpu and mem.
    `turn`: kernels on it.
    With `steps` growth of fragmentation is counted in that many steps of a logistic curve, as the paper's authors do.
    """

    name: str
    fragmentation: float = 0.0
    dearth: float = 0.0
    starvation: float = 0.0
    imbalance: float = 0.0
    scarcity: float = 0.0
    left_over: float = 0.0
    turn: float = 0.0
    steps: int = 0


PACK = PlacementPolicy("pack", left_over=1.0)


@dataclass(frozen=True, slots=True)
class Limit:
    """The upper bounds by what they count: `sessions`, `kernels`, or a slot; others are not limited."""

    running: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits by user, project and resource group; `EACH` stands for all that are not named, each by themselves."""

    users: Mapping[str, Limit] = field(default_factory=dict)
    projects: Mapping[str, Limit] = field(default_factory=dict)
    resource_groups: Mapping[str, Limit] = field(default_factory=dict)

    @property
    def of_running(self) -> bool:
        """Return whether any of them is about what runs."""
        by_scope = (self.users, self.projects, self.resource_groups)
        return any(limit.running for limits in by_scope for limit in limits.values())


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """The rules of one resource group's queue.

    A session that does not fit lets smaller ones pass until it was first in `reserve_after_passes` passes. After that
    they may pass only where time limits show that they cannot delay it. With `defragment`, restartable ones that run
    are moved for it (muster/core/scheduling/defragment.py).
    """

    order: Order = by_arrival
    placement: PlacementPolicy = PACK
    backfill: bool = True
    reserve_after_passes: int = 20
    preemption: bool = False
    defragment: bool = False


@dataclass(frozen=True, slots=True)
class SchedulingPolicy:
    """A site's policies; `groups` names the resource groups that differ from `default`.

    `shares` holds the owners' share weights. After an agent fell silent, the other agents of a gang that it took down
    are kept for that gang for `hold_repaired_s`.
    """

    default: GroupPolicy = field(default_factory=GroupPolicy)
    groups: Mapping[str, GroupPolicy] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    shares: Mapping[str, float] = field(default_factory=dict)
    hold_repaired_s: float = 600.0

    def of(self, resource_group: str) -> GroupPolicy:
        return self.groups.get(resource_group, self.default)
