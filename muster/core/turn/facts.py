"""Facts that reach the queue beside agents' answers: visits that are over, and news of image pulls."""

from dataclasses import dataclass

from muster.core.model.session import PullProgress
from muster.core.turn.answer import AgentAnswer
from muster.core.values.errors import ImageError, MusterError


@dataclass(frozen=True, slots=True)
class VisitOver:
    """The end of a visit; no answer of it follows. `error` says why it broke off, or never began."""

    visit: int
    error: MusterError | None = None


@dataclass(frozen=True, slots=True)
class PullOver:
    """The end of a pull; `error` says why it failed."""

    agent_id: str
    image: str
    error: ImageError | None = None


Fact = AgentAnswer | VisitOver | PullProgress | PullOver
