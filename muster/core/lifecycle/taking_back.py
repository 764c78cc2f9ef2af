"""Sessions whose agents cannot take them any more, before anything of them is there: back into the queue."""

from muster.core.agents.agent import Agent, AgentState, Gpu
from muster.core.lifecycle import transitions
from muster.core.model.session import GpuShare, LaunchStep, Session, SessionState
from muster.core.model.snapshot import Snapshot


def take_back(snapshot: Snapshot) -> list[transitions.Event]:
    """Return → PENDING for sessions that have no container yet and an agent that cannot take them now."""
    agents = {agent.id: agent for agent in snapshot.agents}
    events = []
    for session in snapshot.placed:
        if session.state is not SessionState.SCHEDULED and session.step is not LaunchStep.PULLING:
            continue
        for agent_id in session.agents:
            obstacle = _obstacle(session, agents.get(agent_id), snapshot)
            if obstacle:
                events.append(transitions.back_to_the_queue(session, f"agent {agent_id} {obstacle}", snapshot.now))
                break
    return events


def _obstacle(session: Session, agent: Agent | None, snapshot: Snapshot) -> str:
    if agent is None or agent.state is not AgentState.ALIVE:
        return "does not answer any more"
    return _obstacle_for_any(agent, snapshot) or _obstacle_of_gpus(session, agent)


def _obstacle_for_any(agent: Agent, snapshot: Snapshot) -> str:
    if agent.drain_reason is not None:
        return "is being drained"
    if agent.is_suspect:
        return "is suspect: launches fail there"
    if agent.id in snapshot.slow:
        return "is slow to answer"
    return f"has a problem: {agent.problem}" if agent.problem else ""


def _obstacle_of_gpus(session: Session, agent: Agent) -> str:
    if not _has_the_gpus(session, agent):
        return "no longer has the GPUs, or cuts them otherwise by now"
    sick = _sick_gpu(session, agent)
    return f"has GPU {sick.index} in quarantine: {sick.quarantine}" if sick else ""


def _has_the_gpus(session: Session, agent: Agent) -> bool:
    """Return whether the agent can give these shares.

    Without a cap, a part of a GPU would be all of it. If the GPU is cut otherwise now, the part is not what the session
    requests.
    """
    there = {gpu.uuid: gpu for gpu in agent.gpus}
    return all(
        (gpu := there.get(share.uuid)) is not None
        and (share.whole or (gpu.units > 0 and share.capacity in {None, gpu.capacity}))
        for share in _shares_on(session, agent)
    )


def _sick_gpu(session: Session, agent: Agent) -> Gpu | None:
    """Return a GPU of the session that is in quarantine, or None."""
    promised = {share.uuid for share in _shares_on(session, agent)}
    return next((gpu for gpu in agent.gpus if gpu.quarantine and gpu.uuid in promised), None)


def _shares_on(session: Session, agent: Agent) -> list[GpuShare]:
    allocations = [kernel.allocation for kernel in session.kernels if kernel.allocation]
    return [share for a in allocations if a.agent_id == agent.id for share in a.gpus]
