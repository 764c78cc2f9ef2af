"""Why a session is PENDING, as a value: what a pass finds out and `muster why` explains."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class WaitCode(StrEnum):
    """A reason to wait. NEVER_FITS, NO_AGENTS and NEVER_RUNS do not end by waiting; the others do."""

    NEVER_FITS = "never-fits"
    NO_AGENTS = "no-agents"
    NEVER_RUNS = "never-runs"
    BUSY = "busy"
    BEHIND = "behind"
    RETRY = "retry"
    HELD = "held"
    BEGIN = "begin"
    DEPENDENCY = "dependency"
    LIMIT = "limit"
    ARRAY = "array"
    WINDOW = "window"
    PREEMPTING = "preempting"


@dataclass(frozen=True, slots=True)
class NearestMiss:
    """The agent that came closest to holding the gang, or what is left over of it, and what it lacks for that."""

    agent_id: str
    missing: Mapping[str, int]


# What stands behind a count of agents that were left out, where the cause alone says it oddly: "2 label".
_SPELLED_CAUSES: Mapping[str, str] = {
    "GPU model": "without its GPU model",
    "label": "without its labels",
    "not designated": "that it does not name",
    "excluded": "that it excludes",
    "without overlay": "outside the overlay network",
}


def spell_causes(filtered: Mapping[str, int]) -> str:
    """Return counts of agents by cause for sentences: `1 drained, 2 without its labels`."""
    return ", ".join(f"{count} {_SPELLED_CAUSES.get(cause, cause)}" for cause, count in sorted(filtered.items()))


class LimitKind(StrEnum):
    """The sessions that a limit counts together."""

    USER = "user"
    PROJECT = "project"
    RESOURCE_GROUP = "resource group"
    ARRAY = "array"


@dataclass(frozen=True, slots=True)
class LimitHit:
    """A limit on what may run at a time, and how a session exceeds it.

    `who` names the user, the project or the resource group; an array has no name. `counted` is `sessions`, `kernels`
    or a slot's name. `value` is the limit, `used` what is counted now, `requested` what the session adds.
    """

    kind: LimitKind
    who: str
    counted: str
    value: int
    used: int
    requested: int

    @property
    def scope(self) -> str:
        """Return whose limit it is for people, such as `user ada`."""
        return "its array" if self.kind is LimitKind.ARRAY else f"{self.kind} {self.who}"

    @property
    def counts(self) -> str:
        """Return what the limit counts for people, such as `running gpu`."""
        return f"running {self.counted}"


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason why a session is PENDING.

    `exhausted` counts, for each slot, the agents that have too little of it free; `filtered` counts, for each cause,
    the agents that were skipped. `waits_for` holds ids of sessions: dependencies, the session that is ahead, or those
    that are being preempted. `until` is a known end of the wait, `estimated_start` a computed one (seconds since the
    epoch). `passes` counts the passes in which it was the first that did not fit. `endless` counts the sessions without
    a time limit that run in its group, where the start is unknown because of them.
    """

    code: WaitCode
    message: str
    position: int = 0
    agents_considered: int = 0
    filtered: Mapping[str, int] = field(default_factory=dict)
    exhausted: Mapping[str, int] = field(default_factory=dict)
    nearest: NearestMiss | None = None
    limit: LimitHit | None = None
    waits_for: tuple[str, ...] = ()
    until: float | None = None
    estimated_start: float | None = None
    passes: int = 0
    endless: int = 0
