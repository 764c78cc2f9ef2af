"""What a scheduling decision says: placements to commit, sessions to preempt, and why each other session waits."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from muster.core.model.session import Allocation


class WaitCode(StrEnum):
    """NEVER_FITS, NO_AGENTS and NEVER_RUNS do not end by waiting; the rest does."""

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
    """The agent that came closest to holding the gang (or one more kernel of it), and what it lacks."""

    agent_id: str
    missing: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LimitHit:
    """`scope` is such as `user ada`, `counts` such as `running gpu`; `value` the limit, `used` what is counted now."""

    scope: str
    counts: str
    value: int
    used: int
    asked: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a session is PENDING.

    `exhausted` counts, for each slot, the agents that have too little of it free; `filtered` counts, for each cause,
    the agents that were not asked. `waits_for` holds ids of sessions: dependencies, the session that is ahead, or those
    that are being preempted. `until` is a known end of the wait, `estimated_start` a computed one (seconds since the
    epoch). `passes` counts the passes in which it was the first that did not fit.
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

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Waits(Mapping[str, Wait]):
    """By session id, why it waits.

    Sessions that wait for the same reason share one; only their positions in the queue differ. A queue of a hundred
    thousand would otherwise cost more to explain than to schedule.
    """

    def __init__(self, queues: Sequence[Mapping[str, Wait]]) -> None:
        """`queues` holds, for each resource group, those that wait in it in their order."""
        self._queues = queues

    @cached_property
    def _reasons(self) -> dict[str, Wait]:
        return {session_id: wait for queue in self._queues for session_id, wait in queue.items()}

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {session_id: number for queue in self._queues for number, session_id in enumerate(queue, start=1)}

    def __getitem__(self, session_id: str) -> Wait:
        return replace(self._reasons[session_id], position=self._positions[session_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._reasons)

    def __len__(self) -> int:
        return len(self._reasons)

    def reason(self, session_id: str) -> Wait:
        """The wait without the session's own position: one object for all that share it."""
        return self._reasons[session_id]


@dataclass(frozen=True, slots=True)
class Placement:
    """A whole gang: an allocation for each kernel id. `mode` is what was actually placed."""

    session_id: str
    mode: str
    allocations: Mapping[str, Allocation]


@dataclass(frozen=True, slots=True)
class Preemption:
    """A running session that gives its room to another."""

    session_id: str
    for_session_id: str
    message: str


@dataclass(frozen=True, slots=True)
class Plan:
    placements: tuple[Placement, ...]
    waits: Waits
    preemptions: tuple[Preemption, ...] = ()
