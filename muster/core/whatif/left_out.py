"""What is known of the agents that a `Wait` counts as left out: for what they were drained, and the like."""

from collections.abc import Iterator, Sequence
from math import inf

from muster.core.agents.agent import Agent
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait
from muster.core.scheduling.closures import window_cause
from muster.core.scheduling.placement.misses import RESERVED
from muster.core.scheduling.reasons import obstacle

_MOST_LINES = 5


def left_out(session: Session, wait: Wait, snapshot: Snapshot) -> list[str]:
    """Return a line for each agent and reservation among the causes that `wait` counts, where a reason is known."""
    if not wait.filtered:
        return []
    agents = [agent for agent in snapshot.agents if agent.resource_group == session.spec.resource_group]
    lines = [*_of_agents(agents, wait, snapshot), *_of_windows(session, agents, wait, snapshot)]
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], f"and {more} more; to list agents: muster agents"] if more > 1 else lines


def _of_agents(agents: Sequence[Agent], wait: Wait, snapshot: Snapshot) -> Iterator[str]:
    for agent in agents:
        cause = obstacle(agent, snapshot)
        reason = {
            "drained": agent.drain_reason,
            "suspect": agent.launch_record.reason,
            "misconfigured": agent.problem,
        }.get(cause)
        if cause in wait.filtered and reason:
            yield f"agent {agent.id} is {cause}: {reason}"


def _of_windows(session: Session, agents: Sequence[Agent], wait: Wait, snapshot: Snapshot) -> Iterator[str]:
    ends_by = inf if session.time_limit is None else snapshot.now + session.time_limit
    for window in snapshot.reservations:
        is_met = window.begins_at < ends_by and not window.admits(session.owner, session.spec.project)
        cause = window_cause(window)
        if not (window.reason and is_met and (cause in wait.filtered or RESERVED in wait.filtered)):
            continue
        if any(window.covers(agent.id, agent.resource_group) for agent in agents):
            yield f"{cause}: {window.reason}"
