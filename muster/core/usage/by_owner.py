"""What each owner used recently, for orders that are fair over time."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.core.model.policy import dominant_share
from muster.core.model.snapshot import Snapshot
from muster.core.values.slots import Slots, total


@dataclass(frozen=True, slots=True)
class SessionRun:
    """A session's time on its agents, from `started_at` to `ended_at` (seconds since the epoch)."""

    owner: str
    resource_group: str
    slots: Slots
    started_at: float
    ended_at: float


def runs_so_far(snapshot: Snapshot) -> list[SessionRun]:
    """Return the runs, up to now, of the sessions that have agents."""
    return [
        SessionRun(session.owner, session.spec.resource_group, session.slots, session.started_at, snapshot.now)
        for session in snapshot.placed
        if session.started_at is not None
    ]


def decayed_usage(
    runs: Iterable[SessionRun], now: float, half_life_s: float, capacity: Mapping[str, Slots]
) -> dict[str, float]:
    """Return, by owner, the mean dominant share of their resource groups; time counts half for each half-life.

    An owner who has always had half of their group comes to 0.5. `capacity` is by resource group; a group without
    agents counts for nothing. The sum over parts of the runs is the sum of their results. A result decays until a later
    time by `decay`.
    """
    usage: dict[str, float] = {}
    for run in runs:
        group = capacity.get(run.resource_group)
        if group is None:
            continue
        end = min(run.ended_at, now)
        weight = decay(now - end, half_life_s) - decay(now - min(run.started_at, end), half_life_s)
        usage[run.owner] = usage.get(run.owner, 0.0) + dominant_share(run.slots, group) * weight
    return usage


def decay(elapsed_s: float, half_life_s: float) -> float:
    """Return the part of 1 that is left after that time."""
    return math.exp2(-elapsed_s / half_life_s)


def group_capacity(snapshot: Snapshot) -> dict[str, Slots]:
    """Return, by resource group, the sum of its agents' capacities."""
    groups = {agent.resource_group for agent in snapshot.agents}
    return {group: total(a.capacity for a in snapshot.agents if a.resource_group == group) for group in groups}
