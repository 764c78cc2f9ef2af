"""Agents as a user may see them: their own kernels, and only the sizes of others'."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from muster.core.agents.agent import Agent
from muster.core.model.session import Kernel, Session
from muster.core.spec.session_spec import SessionSpec
from muster.core.usage.over_time import UsageOverTime
from muster.core.values.slots import Slots
from muster.service.agents.agents import AgentOccupancy, agents_in_use, named_agents, shown_agents
from muster.service.agents.gpu_map import GpuOccupancy, KernelShare, gpu_occupancies
from muster.service.sessions.visibility import Sees
from muster.service.usage.over_time import use_of_agent, use_of_cluster, use_of_group, use_of_groups
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class AgentResources:
    """An agent with the kernels that the user may see; `others` counts the rest.

    `drain` and `kept` are as in `AgentOccupancy`.
    """

    agent: Agent
    free: Slots
    drain: str
    kernels: tuple[tuple[Session, Kernel], ...]
    others: int
    gpus: tuple[GpuOccupancy, ...]
    kept: str = ""

    @property
    def used(self) -> Slots:
        return self.agent.capacity - self.free


class ClusterResources:
    """The cluster's capacity, and its usage over time, which reveals nobody's part."""

    def __init__(self, store: Store, settings: Settings, sees: Sees) -> None:
        self._store = store
        self._settings = settings
        self._sees = sees

    def agents(self) -> list[AgentResources]:
        return visible_resources(agents_in_use(shown_agents(self._store, self._settings)), self._sees)

    def agent(self, agent_id: str) -> AgentResources:
        """Raises NotFoundError."""
        (found,) = visible_resources(named_agents(shown_agents(self._store, self._settings), [agent_id]), self._sees)
        return found

    def use(self, span: str, *, group: str | None = None, agent: str | None = None) -> UsageOverTime:
        """Return the usage of the agent, else of the group, else of all. Raises NotFoundError and BadInputError."""
        if agent is not None:
            return use_of_agent(self._store, agent, span)
        return use_of_cluster(self._store, span) if group is None else use_of_group(self._store, group, span)

    def use_by_group(self, span: str) -> dict[str, UsageOverTime]:
        """Raises BadInputError."""
        return use_of_groups(self._store, span)


def visible_resources(uses: Iterable[AgentOccupancy], sees: Sees) -> list[AgentResources]:
    return [
        AgentResources(
            agent=use.agent,
            free=use.free,
            drain=use.drain,
            kernels=tuple((session, kernel) for session, kernel in use.kernels if sees(session)),
            others=sum(not sees(session) for session, _ in use.kernels),
            gpus=tuple(visible_gpus([use], sees)),
            kept=use.kept,
        )
        for use in uses
    ]


def visible_gpus(uses: Iterable[AgentOccupancy], sees: Sees) -> list[GpuOccupancy]:
    return [
        replace(use, held=tuple(held if sees(held.session) else _anonymous(held) for held in use.held))
        for use in gpu_occupancies(uses)
    ]


def _anonymous(held: KernelShare) -> KernelShare:
    session = Session("", "(another's)", "", SessionSpec(), (), 0.0)
    return replace(held, session=session, kernel=replace(held.kernel, id="", role="kernel", index=1, gpu_problem=None))
