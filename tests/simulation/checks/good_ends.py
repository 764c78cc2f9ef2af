"""The promise that a session whose command has ended well does not end for another reason (docs/states.md)."""

from collections.abc import Mapping, Sequence

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.session import Kernel, Session
from tests.simulation.hosts import Host

# A host is asked before a time limit ends anything there. Otherwise it is asked on the interval, if its engine does not
# tell of a death by itself.
_MOMENT_S = 4.0
_INTERVAL_S = 60.0


def unheard_success(
    session: Session,
    deciding: Sequence[Kernel],
    reason: str,
    hosts: Mapping[str, Host],
    agents: Mapping[str, Agent],
) -> str:
    """Return how the command had ended before a planned end for this reason that comes now; empty where it had not.

    `deciding` are the kernels whose commands decide. What a host was in no order to tell is left out.
    """
    within_s = _MOMENT_S if reason.startswith("its time limit of ") else _INTERVAL_S
    ended_s = []
    for kernel in deciding:
        agent_id = kernel.allocation.agent_id if kernel.allocation else ""
        host, agent = hosts[agent_id], agents[agent_id]
        container = host.containers.get((session.id, kernel.name))
        has_ended = container is not None and container.state == "exited" and container.exit_code == 0
        if container is None or not has_ended or container.generation != session.generation:
            return ""
        if agent.state is not AgentState.ALIVE or host.troubles or host.timeline.now - host.well_since < _INTERVAL_S:
            return ""
        ended_s.append(host.timeline.now - (container.finished_at or 0.0))
    if not ended_s or min(ended_s) <= within_s:
        return ""
    return f"its command had ended well {min(ended_s):.1f} s before"
