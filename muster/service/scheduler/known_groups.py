"""The resource groups that a site has: those of its agents, and those that its settings and limits name."""

from collections.abc import Iterable

from muster.core.agents.agent import Agent
from muster.core.model.policy import EACH
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import FieldError, SpecError
from muster.service.scheduler.overrides import limits_in_force
from muster.settings import Settings
from muster.store.store import Store


def known_groups(store: Store, settings: Settings, agents: Iterable[Agent]) -> frozenset[str]:
    """Return the names of the site's resource groups.

    Agents that do not answer count. A group that has none, for now, is known if the settings or a limit name it.
    """
    limited = set(limits_in_force(settings, store).resource_groups) - {EACH}
    named = {*settings.resource_groups, *settings.idle.resource_groups, *limited}
    return frozenset({agent.resource_group for agent in agents} | named)


def check_group(store: Store, settings: Settings, spec: SessionSpec) -> None:
    """Check that the site has the spec's resource group. Raises SpecError.

    Before any agent has reported, nobody knows the groups: then each may be one.
    """
    agents = store.agents.all()
    if not agents:
        return
    groups = known_groups(store, settings, agents)
    if spec.resource_group not in groups:
        problem = f"there is no resource group {spec.resource_group!r}"
        raise SpecError([FieldError("resource_group", problem, f"write one of {', '.join(sorted(groups))}")])
