"""What a drain would do, asked of the queue as it is."""

import time
from collections.abc import Collection

from muster.core.whatif.drain_plan import DrainPlan, drain_plan
from muster.service.agents.agents import named_agents
from muster.service.scheduler.site_policy import SiteScheduling
from muster.settings import Settings
from muster.store.store import Store


def planned_drain(store: Store, settings: Settings, names: Collection[str]) -> DrainPlan:
    """Return what draining these agents would do. Raises NotFoundError."""
    snapshot = SiteScheduling(settings, store).complete(store.snapshot(time.time()))
    return drain_plan(snapshot, [use.agent.id for use in named_agents(snapshot, names)])
