"""Agents with what is free and what runs on them; taking them out of service and back in."""

import time
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from muster.core.images.names import familiar
from muster.core.model.agent import Agent
from muster.core.model.session import Kernel, Session
from muster.core.model.snapshot import Snapshot
from muster.core.values.errors import NotFoundError
from muster.core.values.slots import Slots
from muster.service.sessions.sessions import Sessions
from muster.service.sessions.views import agent_json, timestamp
from muster.service.wake import wake

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class AgentUse:
    """An agent, what is free on it, and the sessions that have kernels there."""

    agent: Agent
    free: Slots
    sessions: tuple[Session, ...]

    @property
    def kernels(self) -> tuple[tuple[Session, Kernel], ...]:
        return tuple(
            (session, kernel)
            for session in self.sessions
            for kernel in session.kernels
            if kernel.allocation and kernel.allocation.agent_id == self.agent.id
        )

    @property
    def drain(self) -> str:
        """`DRAINING` while sessions are left on a drained agent, then `DRAINED`; empty for one that is in service."""
        if self.agent.drain_reason is None:
            return ""
        return "DRAINING" if self.sessions else "DRAINED"


def agents_in_use(snapshot: Snapshot) -> list[AgentUse]:
    """All agents, in the snapshot's order; the sessions on them in the order in which they were submitted."""
    placed: dict[str, list[Session]] = {}
    for session in sorted(snapshot.placed, key=lambda session: (session.submitted_at, session.id)):
        for agent_id in session.agents:
            placed.setdefault(agent_id, []).append(session)
    return [AgentUse(room.agent, room.free, tuple(placed.get(room.agent.id, ()))) for room in snapshot.rooms]


def named_agents(snapshot: Snapshot, names: Collection[str]) -> list[AgentUse]:
    """In the order of the names, each once. Raises NotFoundError that names all that do not exist."""
    known = {use.agent.id: use for use in agents_in_use(snapshot)}
    unknown = [name for name in dict.fromkeys(names) if name not in known]
    if unknown:
        raise NotFoundError(f"there is no agent {', '.join(unknown)}; see `muster agents`")
    return [known[name] for name in dict.fromkeys(names)]


def drain(service: Sessions, names: Collection[str], reason: str) -> dict[str, bool]:
    """No new sessions for these agents; those that run there go on. By agent id, whether it changed.

    Raises NotFoundError before anything is changed.
    """
    named_agents(service.snapshot(), names)
    changed = {name: service.store.drain_agent(name, reason) for name in dict.fromkeys(names)}
    wake(service.settings, service.store)
    return changed


def resume(service: Sessions, names: Collection[str]) -> dict[str, bool]:
    """Sessions for these agents again. By agent id, whether it changed. Raises NotFoundError before any change."""
    named_agents(service.snapshot(), names)
    changed = {name: service.store.resume_agent(name) for name in dict.fromkeys(names)}
    wake(service.settings, service.store)
    return changed


def until_empty(service: Sessions, names: Collection[str], timeout_s: float | None) -> Iterator[list[AgentUse]]:
    """The agents as they are, each time the sessions on them changed, until there are none.

    An agent that was forgotten meanwhile has none. Raises TimeoutError.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    last: list[tuple[str, ...]] | None = None
    while True:
        now = [use for use in agents_in_use(service.snapshot()) if use.agent.id in names]
        left = [tuple(session.id for session in use.sessions) for use in now]
        if left != last:
            yield now
            last = left
        if not any(left):
            return
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(_POLL_S)


def holders(agents: Collection[Agent], reference: str) -> dict[str, str]:
    """By agent id, the id of the image that has this reference there, as last observed."""
    name = familiar(reference)
    return {
        agent.id: str(image["id"])
        for agent in agents
        for image in agent.report.get("images", ())
        if name in image["tags"]
    }


def agent_use_json(use: AgentUse) -> dict[str, Any]:
    return {
        **agent_json(use.agent, asdict(use.free), len(use.kernels)),
        "labels": dict(use.agent.labels),
        "rack": use.agent.rack or None,
        "zone": use.agent.zone or None,
        "numa": [asdict(node) for node in use.agent.numa],
        "drain": use.drain or None,
        "drain_reason": use.agent.drain_reason,
        "unreachable_since": timestamp(use.agent.unreachable_since),
        "sessions": sessions_json(use),
    }


def sessions_json(use: AgentUse) -> list[dict[str, str]]:
    return [{"id": session.id, "name": session.name, "state": session.state} for session in use.sessions]
