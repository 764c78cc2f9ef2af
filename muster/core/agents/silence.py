"""What the silence of agents says: of their hosts, or of the control node's own network."""

from collections.abc import Collection, Iterable

from muster.core.agents.agent import Agent, AgentState

# Hosts fail one by one, or with their rack. If nearly all are silent at once, something that they share has failed.
_MOST_SILENT = 0.8


def is_cut_off(agents: Iterable[Agent]) -> bool:
    """Return whether so many agents are silent that the control node itself seems to be cut off.

    The control node's own agent is no witness, nor are those that were lost before or have left the inventory.
    """
    everybody = tuple(agents)
    silent = sum(is_silent(agent) and _is_witness(agent) for agent in everybody)
    return silent > 0 and silent > _MOST_SILENT * sum(map(_is_witness, everybody))


def excused(agents: Collection[Agent]) -> frozenset[str]:
    """Return ids of the agents that are silent, but not lost for that: the control node seems to be cut off."""
    if not is_cut_off(agents):
        return frozenset()
    return frozenset(agent.id for agent in agents if _is_witness(agent) and is_silent(agent))


def cluster_problem(agents: Collection[Agent]) -> str:
    """Return one line that says what is wrong with the cluster as a whole; empty where nothing is."""
    if any(agent.is_unnamed_with_all for agent in agents):
        return "the inventory names no agent: put it right. Its sessions are kept until it names one"
    silent = len(excused(agents))
    if not silent:
        return ""
    remote = sum(_is_witness(agent) for agent in agents)
    if remote == 1:
        return (
            "the only agent does not answer: its sessions are kept until it does."
            " If it is gone for good, put another host in its place in the inventory"
        )
    return (
        f"{silent} of {remote} agents do not answer: the network of the control node seems to be down."
        " Their sessions are kept, and none is lost, until agents answer again"
    )


def is_silent(agent: Agent) -> bool:
    """Return whether no connection to the agent came about when it was last visited, and it is not LOST yet."""
    return agent.state is AgentState.UNREACHABLE and not agent.reached


def _is_witness(agent: Agent) -> bool:
    return not agent.connection.is_local and agent.state is not AgentState.LOST and not agent.has_left
