"""The agents that a decision has to visit: for launches, notices, signals, and what no session accounts for."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from muster.contract.report import KernelReport
from muster.core.agents.agent import Agent, AgentState
from muster.core.model.session import LaunchStep, Session, SessionState
from muster.core.model.snapshot import Snapshot

# Of all that an agent could not remove, some is in no report: control groups, a kernel's files of a session that stays.
RESISTING = "what it could not remove"
# One for all of them: whatever ids an agent makes up, they cost one visit at each observation.
STRAY_FILES = "files of sessions that are not there"
# The agent is new, or has lost its disk. Once it has accepted a manifest, its reports tell whether it still knows of
# what came since (`observation.missed_the_launch`).
NO_MEMORY = "no manifest accepted yet"


@dataclass(frozen=True, slots=True)
class Touched:
    """The sessions to launch now, and the ids of the agents to visit.

    `needed` are agents that sessions need to start or to end, be they to be visited now or not.
    """

    launches: tuple[Session, ...]
    agents: frozenset[str]
    needed: frozenset[str]


def touches(
    snapshot: Snapshot,
    *,
    free: Collection[str],
    launchable: Collection[str],
    done_by: Mapping[str, Collection[str]],
    unclear: Mapping[str, Collection[str]],
    resisting: Collection[str],
) -> Touched:
    """Return the sessions to launch and the agents to visit.

    `free` are the agents that may be visited, `launchable` ids of sessions that could be launched. `done_by` holds, by
    session id, the agents that have done its present step; `unclear` those whose part in a launch that was cut short is
    to be found out by a newer manifest; `resisting` agents whose leftovers were tried in vain. A gang over several
    agents that finds one of them away reserves the others, so that a stream of smaller gangs cannot delay it.
    """
    available = set(free)
    launches: list[Session] = []
    launching: set[str] = set()
    others: set[str] = set()
    starting: set[str] = set()
    for session in sorted(snapshot.placed, key=lambda s: (s.submitted_at, s.id)):
        if session.id in launchable:
            needed = _needed(session, snapshot)
            starting |= needed
            if needed and needed <= available:
                launches.append(session)
                launching |= needed
            elif session.spans_agents:
                available -= needed
        elif session.id in unclear:
            others.update(unclear[session.id])
        elif session.step is LaunchStep.RELEASING or session.state is SessionState.TERMINATING:
            others.update(agent_id for agent_id in session.agents if agent_id not in done_by.get(session.id, ()))
    needed_by_any = frozenset(starting | others)
    visited = [agent for agent in snapshot.agents if agent.id not in resisting and leftovers(agent, snapshot)]
    others.update(agent.id for agent in visited)
    if snapshot.overlay_keeper and any(s.spans_agents for agent in visited for s, _ in _cut_off(agent, snapshot)):
        # If the overlay is gone, the keeper makes another one.
        others.add(snapshot.overlay_keeper.id)
    return Touched(tuple(launches), frozenset(launching | (others & available)), needed_by_any)


def kept_for_gangs(snapshot: Snapshot, launchable: Collection[str], in_flight: Collection[str]) -> frozenset[str]:
    """Return the agents that are not to be observed now: a gang that could be launched waits for others of its agents.

    Were they observed in the meantime, the gang would find another of its agents away each time. A gang that waits for
    an agent that does not answer keeps none: there an observation must find out what is so.
    """
    alive = {agent.id for agent in snapshot.agents if agent.state is AgentState.ALIVE and agent.id not in snapshot.slow}
    gangs = (_needed(session, snapshot) for session in snapshot.placed if session.id in launchable)
    waiting = [needed for needed in gangs if len(needed) > 1 and needed <= alive and needed & set(in_flight)]
    return frozenset().union(*waiting) - set(in_flight)


def leftovers(agent: Agent, snapshot: Snapshot) -> frozenset[str]:
    """Return what the agent's report shows and no session accounts for, or what a session lacks there.

    Each is a container id, a network name, an old notice, a signal to be sent, a session's last words, a kernel without
    its network, RESISTING, STRAY_FILES, or NO_MEMORY.
    """
    shown = agent.report
    no_memory = frozenset({NO_MEMORY}) if shown.generation is None else frozenset()
    if not (shown.kernels or shown.networks or shown.spools or shown.files or shown.leftovers):
        return no_memory
    keeper = snapshot.overlay_keeper
    keeps = keeper is not None and keeper.id == agent.id
    found = {
        kernel.container_id
        for kernel in agent.report.kernels
        if not _is_expected(snapshot.on_agents.get(kernel.session_id), agent, kernel.generation)
    }
    found |= no_memory | undelivered(agent, snapshot)
    found |= unsent(agent, snapshot)
    found |= spooled(agent, snapshot)
    found |= {RESISTING} if agent.report.leftovers else frozenset()
    if any(not _is_there(snapshot.on_agents.get(id_), agent) for id_ in agent.report.files):
        # A run that was killed had removed a session's containers, or had not made them yet.
        found.add(STRAY_FILES)
    found |= {f"network of {kernel.kernel_id}" for _, kernel in _cut_off(agent, snapshot)}
    for network in agent.report.networks:
        session = snapshot.on_agents.get(network.session_id)
        if network.driver == "overlay":
            unaccounted = keeps and (session is None or session.network != network.name)
        else:
            unaccounted = not _is_there(session, agent)
        if unaccounted:
            found.add(network.name)
    return frozenset(found)


def spooled(agent: Agent, snapshot: Snapshot) -> frozenset[str]:
    """Return the last words that the agent keeps and that no stop will fetch, each with its session's id."""
    return frozenset(last_words_of(id_) for id_ in agent.report.spools if id_ not in snapshot.stopping)


def last_words_of(session_id: str) -> str:
    """Return the name of a session's last words among leftovers."""
    return f"last words of {session_id}"


def undelivered(agent: Agent, snapshot: Snapshot) -> frozenset[str]:
    """Return the notices that the agent's running kernels lack, each with its kernel and its session's text."""
    return frozenset(
        f"notice of {kernel.kernel_id}: {session.notice}"
        for session, kernel in _running(agent, snapshot)
        if kernel.notice != session.notice
    )


def unsent(agent: Agent, snapshot: Snapshot, *, of: str | None = None) -> frozenset[str]:
    """Return the signals that commands of the agent's running kernels lack, each with its kernel.

    Those of all sessions, or of the one with this id.
    """
    found = set()
    for session, report in _running(agent, snapshot):
        if session.signals <= report.signals or of not in {None, session.id}:
            continue
        if any(session.gets_signal(kernel) for kernel in session.kernels if kernel.id == report.kernel_id):
            found.add(f"signal {session.signals} of {report.kernel_id}")
    return frozenset(found)


def _cut_off(agent: Agent, snapshot: Snapshot) -> list[tuple[Session, KernelReport]]:
    """Return the agent's running kernels that are on no network since it was removed, each with its session."""
    return [(session, kernel) for session, kernel in _running(agent, snapshot) if kernel.address is None]


def _running(agent: Agent, snapshot: Snapshot) -> Iterator[tuple[Session, KernelReport]]:
    """Yield the running kernels of RUNNING sessions in the agent's report, each with its session."""
    for kernel in agent.report.kernels:
        session = snapshot.on_agents.get(kernel.session_id)
        if session is None or session.state is not SessionState.RUNNING or kernel.state != "running":
            continue
        if kernel.generation == session.generation:
            yield session, kernel


def _is_expected(session: Session | None, agent: Agent, generation: int) -> bool:
    return session is not None and _is_there(session, agent) and generation == session.generation


def _is_there(session: Session | None, agent: Agent) -> bool:
    return session is not None and agent.id in session.agents


def _needed(session: Session, snapshot: Snapshot) -> set[str]:
    """Return the session's agents, and the keeper of this launch's overlay; nothing when there is no keeper."""
    if not session.spans_agents:
        return set(session.agents)
    keeper = snapshot.overlay_keeper
    return {*session.agents, keeper.id} if keeper else set()
