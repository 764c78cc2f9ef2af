"""Signals before an end that are late: their time begins when they come to their commands."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from muster.core.agents.agent import Agent, AgentState
from muster.core.lifecycle.end_signals import is_late, with_time_from
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.ledger import Ledger
from muster.core.turn.touch import unsent


def with_late_signals(snapshot: Snapshot, ledger: Ledger, answering: Collection[str] = ()) -> Snapshot:
    """Return the snapshot with the time of signals that are late, and still on their way, beginning now.

    An agent sends a signal in its next visit. That comes late where another session's launch takes long there, or
    nobody works the queue. An agent that does not answer delays no end, nor does one that a visit has asked in vain.
    `answering` are those that have just answered, be it after a silence.
    """
    late = [s for s in snapshot.placed if s.state is SessionState.RUNNING and is_late(s, snapshot.now)]
    if not late:
        return snapshot
    agents = {agent.id: agent for agent in snapshot.agents if agent.state is AgentState.ALIVE or agent.id in answering}
    begins_now = {s.id for s in late if any(_is_on_its_way(s, id_, agents, snapshot, ledger) for id_ in s.agents)}
    if not begins_now:
        return snapshot
    sessions = (with_time_from(s, snapshot.now) if s.id in begins_now else s for s in snapshot.sessions)
    return replace(snapshot, sessions=tuple(sessions))


def _is_on_its_way(
    session: Session, agent_id: str, agents: Mapping[str, Agent], snapshot: Snapshot, ledger: Ledger
) -> bool:
    """Return whether a visit to the agent is still to send, or may still send, the session's signal."""
    if agent_id not in agents:
        return False
    missing = unsent(agents[agent_id], snapshot, of=session.id)
    return bool(missing - ledger.tried_on(agent_id)) or (bool(missing) and agent_id in ledger.visits.in_flight)
