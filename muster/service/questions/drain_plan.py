"""What a drain would do, asked of the queue as it is."""

from collections.abc import Collection

from muster.core.whatif.drain_plan import DrainPlan, drain_plan
from muster.service.agents.agents import named_agents
from muster.service.scheduler.site_policy import SiteScheduling
from muster.service.sessions.sessions import Sessions


def planned_drain(service: Sessions, names: Collection[str]) -> DrainPlan:
    """Raises NotFoundError."""
    snapshot = SiteScheduling(service.settings, service.store).complete(service.snapshot())
    return drain_plan(snapshot, [use.agent.id for use in named_agents(snapshot, names)])
