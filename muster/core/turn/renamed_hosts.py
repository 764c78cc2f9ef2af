"""Hosts that the inventory gives another name while sessions run there.

By its new name a host is another agent, on which no session is placed: to match its manifest it would end all that
runs. What runs is known by the ids of its containers, which the engine has made and no other host's report shows.
"""

from collections.abc import Iterable
from dataclasses import replace

from muster.core.agents.agent import Agent, AgentState
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.turn.foreign_kernels import listed


def runs_kernels_of_others(agent: Agent, snapshot: Snapshot) -> bool:
    """Return whether the agent's host runs kernels that were launched on it by another name.

    That is a problem of the agent since the report that showed it.
    """
    return bool(agent.problem) and bool(_kernels_of_others(agent, snapshot))


def with_kernels_of_others(agents: Iterable[Agent], snapshot: Snapshot) -> tuple[Agent, ...]:
    """Return the agents, those whose hosts run kernels by another name with that as their problem."""
    return tuple(_with_kernels_of_others(agent, snapshot) for agent in agents)


def named_otherwise(agent: Agent, snapshot: Snapshot) -> bool:
    """Return whether the agent has left the inventory, and its kernels run on a host that answers by another name."""
    return agent.has_left and any(
        agent.id in _kernels_of_others(other, snapshot)
        for other in snapshot.agents
        if other.problem and other.state is not AgentState.LOST
    )


def _with_kernels_of_others(agent: Agent, snapshot: Snapshot) -> Agent:
    others = _kernels_of_others(agent, snapshot)
    if not others:
        return agent
    ids = listed(session.id for sessions in others.values() for session in sessions)
    former = " and ".join(sorted(others))
    problem = (
        f"its host runs sessions that were placed on {former} ({ids}): give it that name in the inventory until they"
        " have ended, or end them with `muster terminate`"
    )
    return replace(agent, problem="; ".join(filter(None, (agent.problem, problem))))


def _kernels_of_others(agent: Agent, snapshot: Snapshot) -> dict[str, list[Session]]:
    """Return the sessions whose kernels the agent reports though they are on others, by those agents' ids.

    Sessions that are being ended are left out: what runs of them is to be removed wherever it is.
    """
    found: dict[str, list[Session]] = {}
    for shown in agent.report.kernels:
        session = snapshot.on_agents.get(shown.session_id)
        if session is None or session.state is SessionState.TERMINATING or agent.id in session.agents:
            continue
        if shown.generation != session.generation:
            continue
        for kernel in session.kernels:
            if kernel.allocation is not None and kernel.container_id == shown.container_id:
                found.setdefault(kernel.allocation.agent_id, []).append(session)
    return found
