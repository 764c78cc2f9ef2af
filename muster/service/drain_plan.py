"""What a drain would do, asked of the queue as it is."""

from collections.abc import Collection

from muster.core.whatif.drain_plan import DrainPlan, drain_plan
from muster.service.agents import named_agents
from muster.service.sessions import Sessions
from muster.service.site_scheduling import SiteScheduling


def planned_drain(service: Sessions, names: Collection[str]) -> DrainPlan:
    """Raises NotFoundError."""
    snapshot = SiteScheduling(service.settings, service.store).complete(service.snapshot())
    return drain_plan(snapshot, [use.agent.id for use in named_agents(snapshot, names)])
