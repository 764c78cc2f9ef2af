"""All that a decision may know."""

from dataclasses import dataclass
from functools import cached_property

from muster.core.agent import Agent
from muster.core.room import Room
from muster.core.session import PLACED, Kernel, Session, SessionState


@dataclass(frozen=True)
class Snapshot:
    """Agents, the sessions that have not ended, and the time. `now` is in seconds since the epoch."""

    agents: tuple[Agent, ...]
    sessions: tuple[Session, ...]
    now: float

    @cached_property
    def pending(self) -> tuple[Session, ...]:
        return tuple(s for s in self.sessions if s.state is SessionState.PENDING)

    @cached_property
    def placed(self) -> tuple[Session, ...]:
        return tuple(s for s in self.sessions if s.state in PLACED)

    @cached_property
    def rooms(self) -> tuple[Room, ...]:
        """What is free on each agent, in the agents' order."""
        kernels: dict[str, list[Kernel]] = {}
        for session in self.placed:
            for kernel in session.kernels:
                if kernel.allocation:
                    kernels.setdefault(kernel.allocation.agent_id, []).append(kernel)
        return tuple(Room.of(agent).without(kernels.get(agent.id, ())) for agent in self.agents)
