"""What the clock alone decides of agents: which of those that stay silent are LOST."""

from collections.abc import Iterator
from dataclasses import replace

from muster.core.agents.agent import Agent, AgentState
from muster.core.agents.launch_record import LaunchRecord
from muster.core.agents.silence import excused, is_silent
from muster.core.model.snapshot import Snapshot
from muster.core.turn.ledger import Ledger, Silence, TurnRules
from muster.core.turn.renamed_hosts import named_otherwise


def agents_by_the_clock(snapshot: Snapshot, ledger: Ledger, rules: TurnRules) -> tuple[Agent, ...]:
    """Return the agents that have become something else since they were last visited, as they are now.

    An agent is LOST `lost_after_s` after the first visit to which it gave no report, if it gave none to a later one
    either: the first may only have been slow. One whose host answers by another name is not. It must have been silent
    lately: a control node that was itself asleep asks once more. That others answered once tells nothing of the control
    node's network while they are asked again.
    """
    # Times of a clock that was set back since.
    ahead = tuple(agent.set_back(snapshot.now) for agent in snapshot.agents if agent.is_silent_after(snapshot.now))
    if ahead:
        return ahead
    overdue = [agent for agent, at in _verdicts(snapshot, rules) if at <= snapshot.now]
    if not overdue:
        return ()
    asked = ledger.asked(snapshot)
    kept = excused([agent for agent in snapshot.agents if agent.id not in asked or is_silent(agent)])
    return tuple(
        replace(agent, state=AgentState.LOST)
        for agent in overdue
        if agent.id not in kept and _is_confirmed(agent, ledger.silences.get(agent.id), snapshot.now, rules)
        if not named_otherwise(agent, snapshot)
    )


def _is_confirmed(agent: Agent, last: Silence | None, now: float, rules: TurnRules) -> bool:
    first = agent.unreachable_since
    if last is None or first is None:
        return False
    return last.began_at > first and now - rules.lost_after_s / 2 <= last.known_at <= now


def records_by_the_clock(snapshot: Snapshot, rules: TurnRules) -> dict[str, LaunchRecord]:
    """Return, by agent id, the launch records of agents that are suspect no longer."""
    records = {agent.id: agent.launch_record for agent in snapshot.agents}
    return {
        agent_id: record.on_trial()
        for agent_id, record in records.items()
        if record.is_over(snapshot.now, rules.suspects)
    }


def verdict_times(snapshot: Snapshot, rules: TurnRules) -> Iterator[float]:
    """Yield the times at which agents become something else by the clock alone."""
    yield from (at for _, at in _verdicts(snapshot, rules))
    records = (agent.launch_record for agent in snapshot.agents)
    yield from (record.suspect_until for record in records if record.suspect_until is not None)


def _verdicts(snapshot: Snapshot, rules: TurnRules) -> Iterator[tuple[Agent, float]]:
    for agent in snapshot.agents:
        at = agent.lost_at(rules.lost_after_s)
        if at is not None:
            yield agent, at
