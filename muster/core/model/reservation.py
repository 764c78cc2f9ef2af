"""Agents set aside for a time: for some users, or for none of them (maintenance)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation of agents from `begins_at` to `ends_at` (seconds since the epoch).

    They take only the named users' and projects' sessions; with neither named it is a maintenance window. Without named
    agents it holds for all of the resource group.
    """

    name: str
    begins_at: float
    ends_at: float
    resource_group: str | None = None
    agents: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    projects: frozenset[str] = frozenset()
    reason: str = ""

    @property
    def is_maintenance(self) -> bool:
        return not (self.users or self.projects)

    def covers(self, agent_id: str, resource_group: str) -> bool:
        if self.agents:
            return agent_id in self.agents
        return self.resource_group in {None, resource_group}

    def admits(self, owner: str, project: str) -> bool:
        return owner in self.users or project in self.projects
