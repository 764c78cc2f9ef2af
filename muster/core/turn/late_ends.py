"""Ask a session's agents before a time limit ends it: its command may have ended well by itself."""

from muster.core.agents.agent import AgentState
from muster.core.lifecycle.end_signals import limit_at, limit_is_reached
from muster.core.model.session import SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.ledger import Ledger


def asking_before_ends(snapshot: Snapshot, ledger: Ledger) -> Ledger:
    """Return the ledger with agents to be observed that gave no report since a time limit of a session there.

    What was last reported may be as old as the interval of observations, or as the last time that anybody worked the
    queue. An agent that does not answer is not waited for.
    """
    reached = [s for s in snapshot.placed if s.state is SessionState.RUNNING and limit_is_reached(s, snapshot.now)]
    if not reached:
        return ledger
    alive = {agent.id: agent for agent in snapshot.agents if agent.state is AgentState.ALIVE}
    return ledger.observing(
        agent_id
        for session in reached
        for agent_id in session.agents
        if agent_id in alive and alive[agent_id].observed_at < (limit_at(session) or 0.0)
    )
