"""All that a decision may know."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.free_capacity import FreeCapacity
from muster.core.model.policy import SchedulingPolicy
from muster.core.model.reservation import Reservation
from muster.core.model.session import PLACED, Kernel, LaunchStep, Session, SessionState

_PULLING = LaunchStep.PULLING
# Looked up once: a queue of a hundred thousand compares them in each pass.
_PENDING, _TERMINATING = SessionState.PENDING, SessionState.TERMINATING


@dataclass(frozen=True)
class Snapshot:
    """The agents, the sessions that have not ended, and the time. `now` is in seconds since the epoch.

    `slow` holds ids of agents whose visit under way has lasted too long to count on them. `ended` holds, by id, those
    ended sessions that a pending one depends on; `usage` what each owner has used (`QueueView.usage`). Launches of
    generations below `begins_at` are another database's, which was there before. `databases` are the ids of this one,
    and then of those that it continues; empty where agents are not to tell them apart.
    """

    agents: tuple[Agent, ...]
    sessions: tuple[Session, ...]
    now: float
    slow: frozenset[str] = frozenset()
    policy: SchedulingPolicy = field(default_factory=SchedulingPolicy)
    reservations: tuple[Reservation, ...] = ()
    ended: Mapping[str, Session] = field(default_factory=dict)
    usage: Mapping[str, float] = field(default_factory=dict)
    begins_at: float = 0.0
    databases: tuple[str, ...] = ()

    @classmethod
    def of_parts(
        cls,
        agents: tuple[Agent, ...],
        placed: tuple[Session, ...],
        pending: tuple[Session, ...],
        now: float,
        policy: SchedulingPolicy,
        ended: Mapping[str, Session],
        usage: Mapping[str, float],
    ) -> Self:
        """Return a snapshot of sessions that are known to be placed and hold their places, and of those that wait."""
        made = cls(agents, (*placed, *pending), now, policy=policy, ended=ended, usage=usage)
        made.__dict__.update(placed=placed, holding=placed, pending=pending)
        return made

    @cached_property
    def pending(self) -> tuple[Session, ...]:
        return tuple([s for s in self.sessions if s.state is _PENDING])

    @cached_property
    def waiting_for_a_time(self) -> tuple[Session, ...]:
        """Return the pending sessions for which a time matters: to be tried again, to begin, or to be repaired by."""
        return tuple([s for s in self.pending if s.retry_at is not None or s.spec.begin is not None or s.stranded_on])

    @cached_property
    def placed(self) -> tuple[Session, ...]:
        return tuple([s for s in self.sessions if s.state in PLACED])

    @cached_property
    def holding(self) -> tuple[Session, ...]:
        """Return the placed sessions whose places are not free: those of ended processes are."""
        return tuple([s for s in self.placed if s.state is not _TERMINATING or not s.holds_nothing])

    def with_free_places(self) -> "Snapshot":
        """Return the snapshot without the places of sessions that hold nothing any more."""
        if len(self.holding) == len(self.placed):
            return self
        sessions = (_without_place(s) if s.state in PLACED and s.holds_nothing else s for s in self.sessions)
        return replace(self, sessions=tuple(sessions))

    def under(self, policy: SchedulingPolicy, usage: Mapping[str, float]) -> "Snapshot":
        """Return the snapshot under a policy, with what users have used; what is known of its sessions is kept."""
        return self.of_same_sessions(policy=policy, usage=usage)

    def at(self, now: float) -> "Snapshot":
        """Return the snapshot at another time; what is known of its sessions is kept."""
        return self.of_same_sessions(now=now)

    def of_same_sessions(self, **changes: Any) -> "Snapshot":  # noqa: ANN401 - of any field but `sessions`
        """Return the snapshot with other values than its sessions; what is known of those is kept."""
        other = replace(self, **changes)
        for name in ("pending", "placed", "holding", "waiting_for_a_time"):
            # A long queue is gone through only once.
            if name in self.__dict__:
                other.__dict__[name] = self.__dict__[name]
        return other

    @cached_property
    def on_agents(self) -> dict[str, Session]:
        """Return, by id, the sessions that have something on their agents, or may have."""
        return {s.id: s for s in self.placed if s.state is not SessionState.SCHEDULED and s.step is not _PULLING}

    @cached_property
    def stopping(self) -> frozenset[str]:
        """Return the ids of the placed sessions that are being ended."""
        return frozenset(s.id for s in self.placed if s.state is _TERMINATING)

    @cached_property
    def overlay_keeper(self) -> Agent | None:
        """Return the agent that makes and removes overlay networks: the first swarm manager that answers."""
        managers = (a for a in self.agents if a.manages_overlays and a.state is AgentState.ALIVE)
        return next((agent for agent in managers if agent.id not in self.slow), None)

    @cached_property
    def free_capacities(self) -> tuple[FreeCapacity, ...]:
        """Return the free capacity of each agent, in the agents' order."""
        kernels: dict[str, list[Kernel]] = {}
        for session in self.holding:
            for kernel in session.kernels:
                if kernel.allocation:
                    kernels.setdefault(kernel.allocation.agent_id, []).append(kernel)
        return tuple(FreeCapacity.of(agent).without(kernels.get(agent.id, ())) for agent in self.agents)


def _without_place(session: Session) -> Session:
    return replace(session, kernels=tuple(replace(kernel, allocation=None) for kernel in session.kernels))
