"""What the users of a session are told before its end, and where that has not arrived yet."""

from muster.core.model.agent import Agent
from muster.core.model.session import SessionState
from muster.core.model.snapshot import Snapshot


def undelivered(agent: Agent, snapshot: Snapshot) -> frozenset[str]:
    """The running kernels of the agent's report that have another notice than their session, each with that."""
    found = set()
    for kernel in agent.report.kernels:
        session = snapshot.on_agents.get(kernel.session_id)
        if session is None or session.state is not SessionState.RUNNING or kernel.state != "running":
            continue
        if kernel.generation == session.generation and kernel.notice != session.notice:
            found.add(f"notice of {kernel.kernel_id}: {session.notice}")
    return frozenset(found)
