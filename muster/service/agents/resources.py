"""Agents as a user may see them: their own kernels, and only the sizes of others'."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from muster.core.agents.agent import AgentState
from muster.core.model.session import Session
from muster.core.spec.session_spec import SessionSpec
from muster.core.usage.over_time import UsageOverTime
from muster.core.values.slots import total
from muster.service.agents.agents import AgentOccupancy, agents_in_use, named_agents, shown_agents
from muster.service.agents.gpu_map import GpuOccupancy, KernelShare, gpu_occupancies
from muster.service.agents.views import AgentResourcesView, GroupResourcesView
from muster.service.sessions.views import SlotsView
from muster.service.sessions.visibility import Sees
from muster.service.usage.over_time import use_of_agent, use_of_cluster, use_of_group, use_of_groups
from muster.settings import Settings
from muster.store.store import Store


class ClusterResources:
    """The cluster's capacity, and its usage over time, which reveals nobody's part."""

    def __init__(self, store: Store, settings: Settings, sees: Sees) -> None:
        self._store = store
        self._settings = settings
        self._sees = sees

    def groups(self, names: Sequence[str], begin: int, size: int) -> list[GroupResourcesView]:
        """Return these groups, each with a page of its agents. Those that take no sessions come first."""
        by_group: dict[str, list[AgentOccupancy]] = {name: [] for name in names}
        for use in agents_in_use(shown_agents(self._store, self._settings)):
            if use.agent.resource_group in by_group:
                by_group[use.agent.resource_group].append(use)
        return [self._group(name, uses, begin, size) for name, uses in by_group.items()]

    def group_names(self) -> list[str]:
        """Return the names of all groups that have agents."""
        return sorted({agent.resource_group for agent in self._store.agents.all()})

    def agent(self, agent_id: str) -> AgentResourcesView:
        """Raises NotFoundError."""
        (found,) = named_agents(shown_agents(self._store, self._settings), [agent_id])
        return self._view(found)

    def use(self, span: str, *, group: str | None = None, agent: str | None = None) -> UsageOverTime:
        """Return the usage of the agent, else of the group, else of all. Raises NotFoundError and BadInputError."""
        if agent is not None:
            return use_of_agent(self._store, agent, span)
        return use_of_cluster(self._store, span) if group is None else use_of_group(self._store, group, span)

    def use_by_group(self, span: str) -> dict[str, UsageOverTime]:
        """Raises BadInputError."""
        return use_of_groups(self._store, span)

    def _group(self, name: str, uses: Sequence[AgentOccupancy], begin: int, size: int) -> GroupResourcesView:
        ordered = sorted(uses, key=lambda use: (use.agent.takes_sessions, use.agent.id))
        states = Counter(use.agent.state for use in uses)
        return GroupResourcesView(
            name=name,
            agent_count=len(uses),
            states={state: states[state] for state in AgentState if states[state]},
            drained=sum(bool(use.drain) for use in uses),
            suspect=sum(use.agent.is_suspect for use in uses),
            capacity=SlotsView.of(total(use.agent.capacity for use in uses)),
            used=SlotsView.of(total(use.agent.capacity - use.free for use in uses)),
            agents=[self._view(use) for use in ordered[begin : begin + size]],
        )

    def _view(self, use: AgentOccupancy) -> AgentResourcesView:
        return AgentResourcesView.with_gpus(use, self._sees, visible_gpus([use], self._sees))


def visible_gpus(uses: Iterable[AgentOccupancy], sees: Sees) -> list[GpuOccupancy]:
    return [
        replace(use, held=tuple(held if sees(held.session) else _anonymous(held) for held in use.held))
        for use in gpu_occupancies(uses)
    ]


def _anonymous(held: KernelShare) -> KernelShare:
    session = Session("", "(another's)", "", SessionSpec(), (), 0.0)
    return replace(held, session=session, kernel=replace(held.kernel, id="", role="kernel", index=1, gpu_problem=None))
