"""Agents as somebody may see them: what is theirs, and of others' only how much it is."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from muster.core.model.agent import Agent
from muster.core.model.session import Kernel, Session
from muster.core.spec.session_spec import SessionSpec
from muster.core.usage.over_time import UseOverTime
from muster.core.values.slots import Slots
from muster.service.agents.agents import AgentUse, agents_in_use, named_agents
from muster.service.agents.gpu_map import GpuUse, HeldShare, gpu_uses
from muster.service.sessions.sessions import Sessions
from muster.service.usage.over_time import use_of_agent, use_of_cluster, use_of_group, use_of_groups

Sees = Callable[[Session], bool]


@dataclass(frozen=True, slots=True)
class AgentResources:
    """`kernels` are of sessions that he sees; `others` counts the rest. `drain` is as in `AgentUse`."""

    agent: Agent
    free: Slots
    drain: str
    kernels: tuple[tuple[Session, Kernel], ...]
    others: int
    gpus: tuple[GpuUse, ...]

    @property
    def used(self) -> Slots:
        return self.agent.capacity - self.free


@dataclass(frozen=True, slots=True)
class ClusterResources:
    """What there is, and its use over time, of which nobody's part can be told."""

    service: Sessions
    sees: Sees

    def agents(self) -> list[AgentResources]:
        return seen_resources(agents_in_use(self.service.snapshot()), self.sees)

    def agent(self, agent_id: str) -> AgentResources:
        """Raises NotFoundError."""
        (found,) = seen_resources(named_agents(self.service.snapshot(), [agent_id]), self.sees)
        return found

    def use(self, span: str, *, group: str | None = None, agent: str | None = None) -> UseOverTime:
        """Of the agent, else of the group, else of all. Raises NotFoundError and BadInputError."""
        if agent is not None:
            return use_of_agent(self.service, agent, span)
        return use_of_cluster(self.service, span) if group is None else use_of_group(self.service, group, span)

    def use_by_group(self, span: str) -> dict[str, UseOverTime]:
        """Raises BadInputError."""
        return use_of_groups(self.service, span)


def seen_resources(uses: Iterable[AgentUse], sees: Sees) -> list[AgentResources]:
    return [
        AgentResources(
            agent=use.agent,
            free=use.free,
            drain=use.drain,
            kernels=tuple((session, kernel) for session, kernel in use.kernels if sees(session)),
            others=sum(not sees(session) for session, _ in use.kernels),
            gpus=tuple(seen_gpus([use], sees)),
        )
        for use in uses
    ]


def seen_gpus(uses: Iterable[AgentUse], sees: Sees) -> list[GpuUse]:
    return [
        replace(use, held=tuple(held if sees(held.session) else _anonymous(held) for held in use.held))
        for use in gpu_uses(uses)
    ]


def _anonymous(held: HeldShare) -> HeldShare:
    session = Session("", "(another's)", "", SessionSpec(), (), 0.0)
    return replace(held, session=session, kernel=replace(held.kernel, id="", role="kernel", index=1, gpu_problem=None))
