"""Sessions that run, as the store would hold them, without any agent."""

from dataclasses import replace
from typing import Any

from muster.core.model.session import Session
from tests.strategies.sessions import make_session, placed_on


def running_session(number: int, *agent_ids: str, ssh_port: int = 30001, **values: Any) -> Session:
    """Return a running session whose kernels are on the agents in turn."""
    session = placed_on(make_session(number, **values), *agent_ids)
    kernels = [
        replace(kernel, container_id=f"c{number}-{kernel.rank}", container_state="running")
        for kernel in session.kernels
    ]
    kernels[0] = replace(kernels[0], ssh_port=ssh_port)
    return replace(session, kernels=tuple(kernels), public_key="ssh-ed25519 AAAA muster-session")
