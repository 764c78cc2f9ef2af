"""What each owner used of late, for orders that are fair over time."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.core.model.policy import dominant_share
from muster.core.model.snapshot import Snapshot
from muster.core.values.slots import Slots, total


@dataclass(frozen=True, slots=True)
class Run:
    """A session's time on its agents, from `started_at` to `ended_at` (seconds since the epoch)."""

    owner: str
    resource_group: str
    slots: Slots
    started_at: float
    ended_at: float


def runs_so_far(snapshot: Snapshot) -> list[Run]:
    """Of the sessions that hold agents now."""
    return [
        Run(session.owner, session.spec.resource_group, session.slots, session.started_at, snapshot.now)
        for session in snapshot.placed
        if session.started_at is not None
    ]


def decayed_usage(
    runs: Iterable[Run], now: float, half_life_s: float, capacity: Mapping[str, Slots]
) -> dict[str, float]:
    """By owner, the dominant share of his resource groups that he held on average; time counts half for each half-life.

    Who has held half of his group for ever comes to 0.5. `capacity` is by resource group; a group without agents counts
    for nothing. The sum over parts of the runs is the sum of their results, and what is known at one time decays by
    `decay` until a later one.
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
    """What is left of 1 after that time."""
    return math.exp2(-elapsed_s / half_life_s)


def group_capacity(snapshot: Snapshot) -> dict[str, Slots]:
    """By resource group, what all of its agents have together."""
    groups = {agent.resource_group for agent in snapshot.agents}
    return {group: total(a.capacity for a in snapshot.agents if a.resource_group == group) for group in groups}
