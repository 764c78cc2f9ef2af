"""Use over time, of resource groups and of single agents."""

import time

from muster.core.usage.over_time import UsageOverTime, added, span_named, usage_over_time
from muster.core.values.errors import NotFoundError
from muster.store.store import Store


def use_of_agent(store: Store, agent_id: str, span_name: str) -> UsageOverTime:
    """Raises NotFoundError and BadInputError."""
    span = span_named(span_name)
    if all(agent.id != agent_id for agent in store.agents.all()):
        raise NotFoundError(f"there is no agent {agent_id!r}; see `muster agents`")
    now = time.time()
    rows = store.samples.of_agent(span, now - span.length_s - span.step_s, agent_id)
    return usage_over_time(span, rows, now)


def use_of_cluster(store: Store, span_name: str) -> UsageOverTime:
    """Return the usage of all agents, also of those that are gone. Raises BadInputError."""
    span = span_named(span_name)
    now = time.time()
    by_group = store.samples.by_group(span, now - span.length_s - span.step_s)
    times = {at for rows in by_group.values() for at in rows}
    rows = {at: added([rows[at] for rows in by_group.values() if at in rows]) for at in times}
    return usage_over_time(span, rows, now)


def use_of_groups(store: Store, span_name: str) -> dict[str, UsageOverTime]:
    """Return the usage of groups that have agents. Raises BadInputError."""
    span = span_named(span_name)
    now = time.time()
    rows = store.samples.by_group(span, now - span.length_s - span.step_s)
    groups = sorted({agent.resource_group for agent in store.agents.all()})
    return {group: usage_over_time(span, rows.get(group, {}), now) for group in groups}


def use_of_group(store: Store, group: str, span_name: str) -> UsageOverTime:
    """Raises NotFoundError and BadInputError."""
    found = use_of_groups(store, span_name)
    if group not in found:
        raise NotFoundError(f"there is no agent in a resource group {group!r}; see `muster agents`")
    return found[group]
