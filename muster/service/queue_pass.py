"""One pass over the queue: observe, reconcile, schedule, converge, record.

Every step commits before the next one acts on it, so that a crash anywhere leaves a state from which the next pass, by
this same code, goes on.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from muster.ansible_gateway.gateway import Convergence, Observation
from muster.core import lifecycle
from muster.core.agent import Agent, AgentState, agent_from_report
from muster.core.lifecycle import Event
from muster.core.manifest import KeyPair, LaunchPolicy, Render, manifest
from muster.core.placement import Policy
from muster.core.schedule import schedule
from muster.core.session import PLACED, Session, SessionState
from muster.core.snapshot import Snapshot
from muster.service.logs import KeptLogs
from muster.store.store import Store


class Gateway(Protocol):
    """What a pass needs of the agents."""

    def observe(self) -> Observation: ...

    def converge(self, manifests: Mapping[str, Mapping[str, Any]]) -> Convergence: ...


@dataclass(slots=True)
class PassSummary:
    """What one pass did, by session id; `problems` by agent id."""

    scheduled: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    waiting: int = 0
    problems: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        return bool(self.scheduled or self.started or self.ended or self.failed)

    def note(self, events: Iterable[Event]) -> None:
        lists = {
            SessionState.SCHEDULED: self.scheduled,
            SessionState.RUNNING: self.started,
            SessionState.TERMINATED: self.ended,
            SessionState.ERROR: self.failed,
        }
        for event in events:
            if event.to_state in lists and event.from_state is not event.to_state:
                lists[event.to_state].append(event.session_id)


@dataclass(frozen=True, slots=True)
class PassDependencies:
    """The shell around the pure core."""

    store: Store
    gateway: Gateway
    logs: KeptLogs
    render: Render
    make_key_pair: Callable[[str], KeyPair]
    launch_policy: LaunchPolicy
    policy: Policy = field(default_factory=Policy)
    clock: Callable[[], float] = time.time


def run_pass(shell: PassDependencies, *, observe: bool = True) -> PassSummary:
    """The caller holds the pass lock.

    Without `observe` the last reports serve, unless a launch was cut short: what came of it must be read from the
    agents.
    """
    summary = PassSummary()
    snapshot = shell.store.snapshot(shell.clock())
    cut_short = any(session.state is SessionState.PREPARING for session in snapshot.sessions)
    if observe or cut_short or not snapshot.agents:
        _observe(shell, snapshot, summary)
        snapshot = shell.store.snapshot(shell.clock())
    _schedule(shell, snapshot, summary)
    touched = _touched(shell.store.snapshot(shell.clock()))
    if touched:
        _converge(shell, touched, summary)
    return summary


def _observe(shell: PassDependencies, before: Snapshot, summary: PassSummary) -> None:
    observation = shell.gateway.observe()
    now = shell.clock()
    known = {agent.id: agent for agent in before.agents}
    seen = [agent_from_report(agent_id, report, now) for agent_id, report in observation.reports.items()]
    lost = [
        replace(known[agent_id], state=AgentState.LOST, problem=problem)
        for agent_id, problem in observation.problems.items()
        if agent_id in known
    ]
    shell.store.save_agents([*seen, *lost])
    summary.problems |= observation.problems
    for agent_id in known.keys() - observation.reports.keys() - observation.problems.keys():
        _not_in_inventory(shell.store, known[agent_id], before)
    snapshot = replace(before, now=now)
    summary.note(shell.store.apply(lifecycle.observe(snapshot, observation.reports)))


def _not_in_inventory(store: Store, agent: Agent, snapshot: Snapshot) -> None:
    if any(agent.id in session.agents for session in snapshot.placed):
        store.save_agents([replace(agent, state=AgentState.LOST, problem="it is no longer in the inventory")])
    else:
        store.forget_agent(agent.id)


def _schedule(shell: PassDependencies, snapshot: Snapshot, summary: PassSummary) -> None:
    if shell.store.apply(lifecycle.take_back(snapshot)):
        snapshot = shell.store.snapshot(snapshot.now)
    plan = schedule(snapshot, shell.policy)
    summary.note(shell.store.apply(lifecycle.place(plan, snapshot)))
    before = {session.id: session.wait for session in snapshot.pending}
    waits = {session_id: wait.as_dict() for session_id, wait in plan.waits.items()}
    shell.store.save_waits({key: wait for key, wait in waits.items() if wait != before[key]})
    summary.waiting = len(waits)


def _touched(snapshot: Snapshot) -> list[Agent]:
    """Agents on which something is to be done: launches, ends, and what no session accounts for."""
    acting = {SessionState.SCHEDULED, SessionState.PREPARING, SessionState.TERMINATING}
    busy = {agent_id for s in snapshot.placed if s.state in acting for agent_id in s.agents}
    generations = {session.id: session.generation for session in snapshot.placed}
    return [
        agent
        for agent in snapshot.agents
        if agent.state is AgentState.ALIVE and (agent.id in busy or _has_leftovers(agent, generations))
    ]


def _has_leftovers(agent: Agent, generations: Mapping[str, int]) -> bool:
    kernels = agent.report.get("kernels", ())
    networks = agent.report.get("networks", ())
    return any(generations.get(kernel["session_id"]) != kernel["generation"] for kernel in kernels) or any(
        network["session_id"] not in generations for network in networks
    )


def _converge(shell: PassDependencies, touched: list[Agent], summary: PassSummary) -> None:
    now = shell.clock()
    generation = shell.store.next_generation(now)
    reachable = {agent.id for agent in touched}
    keys = {}
    launches = []
    for session in shell.store.snapshot(now).placed:
        if session.state in {SessionState.SCHEDULED, SessionState.PREPARING} and reachable.issuperset(session.agents):
            keys[session.id] = shell.make_key_pair(f"muster-{session.name}")
            launches.append(lifecycle.launch(session, generation, keys[session.id].public, now))
    shell.store.apply(launches)

    # Read again: a session that a user ended in the meantime must not be launched.
    placed = [s for s in shell.store.snapshot(now).placed if s.state is not SessionState.PREPARING or s.id in keys]
    manifests = {
        agent.id: manifest(agent, placed, keys, generation, shell.launch_policy, shell.render) for agent in touched
    }
    convergence = shell.gateway.converge(manifests)
    summary.problems |= {**convergence.refused, **convergence.unreachable}
    _record(shell, placed, convergence, summary)


def _record(shell: PassDependencies, placed: list[Session], convergence: Convergence, summary: PassSummary) -> None:
    now = shell.clock()
    shell.store.save_agents(
        agent_from_report(agent_id, report, now) for agent_id, report in convergence.reports.items()
    )
    for outcomes in convergence.outcomes.values():
        for outcome in outcomes.values():
            for last_words in outcome["last_words"]:
                shell.logs.keep(last_words)
    current = shell.store.get([session.id for session in placed])
    events = []
    for session in current.values():
        if session.state in PLACED:
            outcomes = _outcomes_of(session, convergence)
            events += lifecycle.record(session, outcomes, convergence.reports, now)
    summary.note(shell.store.apply(events))
    # A command that ended while the gang was being started is in these reports already.
    summary.note(shell.store.apply(lifecycle.observe(shell.store.snapshot(now), convergence.reports)))


def _outcomes_of(session: Session, convergence: Convergence) -> dict[str, dict[str, Any]]:
    """By agent id. An agent whose module failed as a whole has failed this session's launch too."""
    outcomes = dict(convergence.outcomes.get(session.id, {}))
    if session.state is SessionState.PREPARING:
        for agent_id in session.agents:
            if agent_id in convergence.refused:
                error = f"agent {agent_id}: {convergence.refused[agent_id]}"
                outcomes[agent_id] = {"outcome": "failed", "error": error, "permanent": False, "last_words": []}
    return outcomes
