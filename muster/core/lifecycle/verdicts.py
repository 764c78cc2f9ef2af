"""What the clock alone decides of agents: which of those that stay silent are LOST."""

from collections.abc import Iterator
from dataclasses import replace

from muster.core.agents.agent import Agent, AgentState
from muster.core.agents.launch_record import LaunchRecord
from muster.core.agents.silence import excused
from muster.core.lifecycle.ledger import Ledger, Silence, TurnRules
from muster.core.model.snapshot import Snapshot


def agents_by_the_clock(snapshot: Snapshot, ledger: Ledger, rules: TurnRules) -> tuple[Agent, ...]:
    """Return the agents that have become something else since they were last visited, as they are now.

    An agent is LOST `lost_after_s` after the first visit to which it gave no report, if it gave none to a later one
    either: the first may only have been slow. It must have been silent lately: a control node that was itself asleep
    asks once more.
    """
    overdue = [agent for agent, at in _verdicts(snapshot, rules) if at <= snapshot.now]
    if not overdue:
        return ()
    lately, kept = snapshot.now - rules.lost_after_s / 2, excused(snapshot.agents)
    return tuple(
        replace(agent, state=AgentState.LOST)
        for agent in overdue
        if agent.id not in kept and _is_confirmed(agent, ledger.silences.get(agent.id), lately)
    )


def _is_confirmed(agent: Agent, last: Silence | None, lately: float) -> bool:
    first = agent.unreachable_since
    return last is not None and first is not None and last.began_at > first and last.known_at >= lately


def records_by_the_clock(snapshot: Snapshot) -> dict[str, LaunchRecord]:
    """Return, by agent id, the launch records of agents that are suspect no longer."""
    return {agent.id: agent.launch_record.on_trial() for agent, until in _suspects(snapshot) if until <= snapshot.now}


def verdict_times(snapshot: Snapshot, rules: TurnRules) -> Iterator[float]:
    """Yield the times at which agents become something else by the clock alone."""
    yield from (at for _, at in _verdicts(snapshot, rules))
    yield from (until for _, until in _suspects(snapshot))


def _suspects(snapshot: Snapshot) -> Iterator[tuple[Agent, float]]:
    for agent in snapshot.agents:
        if agent.launch_record.suspect_until is not None:
            yield agent, agent.launch_record.suspect_until


def _verdicts(snapshot: Snapshot, rules: TurnRules) -> Iterator[tuple[Agent, float]]:
    for agent in snapshot.agents:
        at = agent.lost_at(rules.lost_after_s)
        if at is not None:
            yield agent, at
