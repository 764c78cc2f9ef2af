"""Samples of what agents have and use, taken as their reports come in."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from muster.core.agents.agent import Agent
from muster.core.model.agent_sample import Counted, counted, is_due, sample
from muster.core.model.snapshot import Snapshot
from muster.store.store import Store

if TYPE_CHECKING:
    from muster.core.model.session import Kernel

_REMOVE_EVERY_S = 900


class AgentSampling:
    """The sampling of one queue worker. If its memory is lost, the first CPU usage after that is not known."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counted: dict[str, Counted] = {}
        self._removed_at = 0.0

    def observe(self, snapshot: Snapshot, agents: Iterable[Agent]) -> None:
        """Store samples of agents that have just answered, as they were in their reports."""
        due = {agent.id: agent for agent in agents if is_due(self._last(agent.id), agent.observed_at)}
        if not due:
            return
        kernels: dict[str, list[Kernel]] = {agent_id: [] for agent_id in due}
        for session in snapshot.holding:
            for kernel in session.kernels:
                if kernel.allocation and kernel.allocation.agent_id in due:
                    kernels[kernel.allocation.agent_id].append(kernel)
        taken = [sample(agent, kernels[agent.id], self._counted.get(agent.id)) for agent in due.values()]
        self._store.samples.add(taken)
        self._counted |= {agent.id: counted(agent.report, agent.observed_at) for agent in due.values()}
        if abs(snapshot.now - self._removed_at) >= _REMOVE_EVERY_S:
            self._removed_at = snapshot.now
            self._store.samples.remove_old(snapshot.now)
            known = due.keys() | {agent.id for agent in snapshot.agents}
            self._counted = {agent_id: seen for agent_id, seen in self._counted.items() if agent_id in known}

    def _last(self, agent_id: str) -> float | None:
        return self._counted[agent_id].at if agent_id in self._counted else None
