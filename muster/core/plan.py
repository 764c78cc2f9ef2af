"""What a scheduling decision says: placements to commit, and why each other session waits."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from muster.core.session import Allocation


class WaitCode(StrEnum):
    NEVER_FITS = "never-fits"
    BUSY = "busy"
    BEHIND = "behind"
    RETRY = "retry"
    NO_AGENTS = "no-agents"


@dataclass(frozen=True, slots=True)
class NearestMiss:
    """The agent that came closest to holding the gang (or one more kernel of it), and what it lacks."""

    agent_id: str
    missing: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a session is PENDING.

    `exhausted` counts, for each slot, the agents that have too little of it free; `filtered` counts, for each cause,
    the agents that were not asked.
    """

    code: WaitCode
    message: str
    position: int
    agents_considered: int = 0
    filtered: Mapping[str, int] = field(default_factory=dict)
    exhausted: Mapping[str, int] = field(default_factory=dict)
    nearest: NearestMiss | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Placement:
    """A whole gang: an allocation for each kernel id. `mode` is what was actually placed."""

    session_id: str
    mode: str
    allocations: Mapping[str, Allocation]


@dataclass(frozen=True, slots=True)
class Plan:
    placements: tuple[Placement, ...]
    waits: Mapping[str, Wait]
