"""Agents with what is free and what runs on them; taking them out of service and back in."""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from muster.core.agents.agent import Agent
from muster.core.agents.silence import cluster_problem, excused
from muster.core.model.session import Kernel, Session
from muster.core.model.snapshot import Snapshot
from muster.core.values.errors import NotFoundError
from muster.core.values.slots import Slots
from muster.service.wake import wake
from muster.settings import Settings
from muster.store.store import Store

_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class AgentOccupancy:
    """An agent, what is free on it, and the sessions that have kernels there.

    `kept` says why it is not lost though it stays silent; empty for others.
    """

    agent: Agent
    free: Slots
    sessions: tuple[Session, ...]
    kept: str = ""

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
        """Return `DRAINING` while a drained agent has sessions, then `DRAINED`; empty for one in service."""
        if self.agent.drain_reason is None:
            return ""
        return "DRAINING" if self.sessions else "DRAINED"


def agents_in_use(snapshot: Snapshot) -> list[AgentOccupancy]:
    """Return all agents in the snapshot's order, each with its sessions in the order of their submits."""
    placed: dict[str, list[Session]] = {}
    for session in sorted(snapshot.placed, key=lambda session: (session.submitted_at, session.id)):
        for agent_id in session.agents:
            placed.setdefault(agent_id, []).append(session)
    problem, kept = cluster_problem(snapshot.agents), excused(snapshot.agents)
    return [
        AgentOccupancy(
            one.agent,
            one.free,
            tuple(placed.get(one.agent.id, ())),
            problem if one.agent.id in kept else "",
        )
        for one in snapshot.free_capacities
    ]


def shown_agents(store: Store, settings: Settings) -> Snapshot:
    """Return the present snapshot for a reader: agents without a recent observation are STALE."""
    snapshot = store.snapshot(time.time())
    return replace(snapshot, agents=tuple(a.aged(snapshot.now, settings.unworked_limit_s) for a in snapshot.agents))


def named_agents(snapshot: Snapshot, names: Collection[str]) -> list[AgentOccupancy]:
    """Return the named agents in the names' order, each once. Raises NotFoundError that names all that do not exist."""
    known = {use.agent.id: use for use in agents_in_use(snapshot)}
    unknown = [name for name in dict.fromkeys(names) if name not in known]
    if unknown:
        raise NotFoundError(f"there is no agent {', '.join(unknown)}; see `muster agents`")
    return [known[name] for name in dict.fromkeys(names)]


class Agents:
    """The agents of the cluster: read, drained, resumed."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings

    def all(self) -> tuple[Agent, ...]:
        """Return all known agents, by id."""
        return self._store.agents.all()

    def in_use(self) -> list[AgentOccupancy]:
        """Return all agents with what is allocated on them."""
        return agents_in_use(shown_agents(self._store, self._settings))

    def named(self, names: Collection[str]) -> list[AgentOccupancy]:
        """Return the agents in the names' order, each once. Raises NotFoundError that lists all unknown names."""
        return named_agents(shown_agents(self._store, self._settings), names)

    def drain(self, names: Collection[str], reason: str, user: str) -> dict[str, bool]:
        """Start no more sessions on these agents; those that run there go on. Return by agent id whether it changed.

        Without a reason, one that is drained already keeps its own, and others get one that names the user.
        Raises NotFoundError before anything is changed.
        """
        self.named(names)
        given = reason or f"drained by {user}"
        changed = {
            name: self._store.agents.drain(name, given, keeps_reason=not reason) for name in dict.fromkeys(names)
        }
        wake(self._settings, self._store)
        return changed

    def resume(self, names: Collection[str]) -> dict[str, bool]:
        """Start sessions on these agents again, be they drained or suspect. Return by agent id whether it changed.

        Raises NotFoundError before anything is changed.
        """
        self.named(names)
        changed = {name: self._store.agents.resume(name) for name in dict.fromkeys(names)}
        wake(self._settings, self._store)
        return changed

    def resume_gpu(self, name: str, gpu: str) -> bool:
        """Start sessions on a GPU again, by its index or UUID, although it has the symptoms that it has now.

        Return whether it was in quarantine. A new or worse symptom puts it there again. Raises NotFoundError.
        """
        (use,) = self.named([name])
        found = [known for known in use.agent.gpus if gpu in {str(known.index), known.uuid, known.physical_uuid}]
        if not found:
            raise NotFoundError(f"agent {name} has no GPU {gpu!r}; see `muster agents --gpus`")
        record = use.agent.gpu_record
        uuids = {known.physical_uuid for known in found}
        marks = {uuid: tuple(symptom.mark for symptom in record.symptoms.get(uuid, ())) for uuid in uuids}
        self._store.agents.accept_symptoms(name, marks)
        wake(self._settings, self._store)
        return any(known.quarantine for known in found)

    def until_empty(self, names: Collection[str], timeout_s: float | None) -> Iterator[list[AgentOccupancy]]:
        """Yield the agents each time that the sessions on them changed, until there are none.

        A forgotten agent has none. Raises TimeoutError.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        last: list[tuple[str, ...]] | None = None
        while True:
            now = [use for use in self.in_use() if use.agent.id in names]
            left = [tuple(session.id for session in use.sessions) for use in now]
            if left != last:
                yield now
                last = left
            if not any(left):
                return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(_POLL_S)
