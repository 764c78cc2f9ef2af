"""After a restore: adopt the launches that the database does not know, as they run on the agents.

A backup is older than what runs. Once everybody was asked, what agents report decides what is recorded; before that,
nothing is ended, removed, launched or placed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from muster.contract.report import KernelReport
from muster.core.agents.agent import Agent
from muster.core.lifecycle.observation import has_begun, newest_believed, observe, seen_kernels
from muster.core.lifecycle.transitions import (
    NO_CONTAINER,
    NO_SIGNAL,
    NOT_PLACED,
    Event,
    back_to_the_queue,
    fail_begun,
    transition,
)
from muster.core.model.reported import Reports
from muster.core.model.session import EXITED, Allocation, GpuShare, Kernel, LaunchStep, Session, SessionState
from muster.core.model.snapshot import Snapshot

HELD_BY = "muster restore"


@dataclass(frozen=True, slots=True)
class Adoption:
    """An adoption that is to come. `visit` is the number of the visit that asks all agents, `heard` are its answers.

    `holds`: sessions that may have run since the backup do not begin before somebody releases them.
    """

    holds: bool
    visit: int | None = None
    heard: frozenset[str] = frozenset()

    def asking(self, visit: int | None) -> "Adoption":
        """Return it while this visit is under way; None: while all are still to be asked."""
        return replace(self, visit=visit)

    def hearing(self, agent_ids: Iterable[str]) -> "Adoption":
        return replace(self, heard=self.heard.union(agent_ids))


def adoptions(snapshot: Snapshot, adoption: Adoption) -> tuple[Event, ...]:
    """Return what follows from the reports of the agents that were heard; a session has one event at most.

    A launch is adopted where they report all of its containers, and its commands have begun: of those of one session,
    the newest. What has ended since then ends its session later, as ever. What was being launched in the backup, and
    does not run, goes back into the queue: another session may have its place by now.
    """
    agents = {agent.id: agent for agent in snapshot.agents if agent.id in adoption.heard}
    reports = {agent.id: agent.report for agent in agents.values()}
    launches = _launches(reports)
    events = []
    for session in snapshot.sessions:
        if session.ends_for_good:
            continue
        as_it_runs = _as_it_runs(session, launches.get(session.id, {}), agents, newest_believed(snapshot.now))
        if as_it_runs is not None:
            seen = seen_kernels(as_it_runs, reports)
            events.append(_adopted(session, as_it_runs, seen, snapshot.now))
        elif event := _given_up(session, reports, adoption, snapshot.now):
            events.append(event)
    return tuple(events)


def observations(snapshot: Snapshot, adoption: Adoption, asked: frozenset[str] = frozenset()) -> tuple[Event, ...]:
    """Return what the reports that were heard mean for the sessions that run, with those that were adopted.

    The time ends none on agents that are `asked`, as in `observe`.
    """
    reports = {agent.id: agent.report for agent in snapshot.agents if agent.id in adoption.heard}
    return tuple(observe(snapshot, reports, asked))


def _given_up(session: Session, reports: Reports, adoption: Adoption, now: float) -> Event | None:
    """Return the end of a launch or restart that was under way in the backup; None where there was none.

    Of a launch on one agent, which was not heard, is found out later what became.
    """
    held_by = HELD_BY if adoption.holds else session.held_by
    if session.state is SessionState.TERMINATING:
        changes = session.step is LaunchStep.RESTARTING or held_by != session.held_by
        return _queued_instead(session, held_by, now) if changes else None
    if session.step is LaunchStep.STARTING:
        away = [agent_id for agent_id in session.agents if agent_id not in reports]
        if has_begun(session, reports):
            return fail_begun(session, "a part of its launch was gone when the database was put back", now)
        if away and session.spans_agents:
            # It may have been released since, which the backup does not say.
            reason = f"agent {away[0]} was away when the database was put back, and commands may have begun"
            return fail_begun(session, reason, now)
        if away:
            return None
    elif session.state is not SessionState.SCHEDULED and session.step is not LaunchStep.PULLING:
        return None
    event = back_to_the_queue(session, "it does not run, and the database was put back", now)
    return replace(event, session={**event.session, "held_by": held_by})


def _adopted(session: Session, as_it_runs: Session, seen: Mapping[str, Mapping[str, Any]], now: float) -> Event:
    """Return → RUNNING for a session that a restored database knows from before the launch in which it runs.

    `as_it_runs` has that launch's kernels with their allocations, `seen` the facts of its containers. Its time counts
    from when its launch was decided on, which its generation tells.
    """
    placed = {kernel.id: kernel.allocation for kernel in as_it_runs.kernels}
    changes: dict[str, Any] = {
        **NOT_PLACED,
        **NO_SIGNAL,
        "placed_mode": as_it_runs.placed_mode,
        "given": as_it_runs.given,
        "generation": as_it_runs.generation,
        "public_key": as_it_runs.public_key,
        "started_at": min(now, max(session.submitted_at, as_it_runs.generation / 1000)),
        "signals": max(int(facts["signals"]) for facts in seen.values()),
        "wait": None,
        "retry_at": None,
        "held_by": None,
        "attempts": 0,
        "failed_on": (),
        "stranded_on": (),
        "moved_for": None,
        "requeue_after_end": False,
        "result": None,
        "exit_code": None,
        "notice": None,
        "warned_at": None,
    }
    kernels = {
        kernel.id: {**NO_CONTAINER, "allocation": placed.get(kernel.id), **seen.get(kernel.id, {})}
        for kernel in session.possible_kernels
    }
    reason = "it runs: a launch that the database did not know when it was put back"
    event = transition(session, SessionState.RUNNING, reason, now, **changes, kernels=kernels)
    expects = {"generation": session.generation, "updates": session.updates, **_unless_ended(session)}
    return replace(event, expects=expects)


def _queued_instead(session: Session, held_by: str | None, now: float) -> Event:
    """Return TERMINATING → TERMINATING for a restart: the session goes back into the queue once it has stopped.

    Another session may have its place by then. One that is to be queued again anyway is only held, if that is asked.
    """
    reason = f"{session.reason}; it is queued again, since the database was put back"
    changes: dict[str, Any] = {"step": None, "requeue_after_end": True, "held_by": held_by}
    event = transition(session, SessionState.TERMINATING, reason, now, **changes)
    return replace(event, expects=_unless_ended(session))


def _unless_ended(session: Session) -> Mapping[str, Any]:
    """Return what an event expects whose session its user may have ended for good since it was read."""
    return {"step": session.step, "requeue_after_end": session.requeue_after_end}


@dataclass(frozen=True, slots=True)
class _Container:
    agent_id: str
    entry: KernelReport


def _launches(reports: Reports) -> dict[str, dict[int, list[_Container]]]:
    """Return the containers by session id and generation."""
    found: dict[str, dict[int, list[_Container]]] = {}
    for agent_id, report in reports.items():
        for entry in report.kernels:
            of_session = found.setdefault(entry.session_id, {})
            of_session.setdefault(entry.generation, []).append(_Container(agent_id, entry))
    return found


def _as_it_runs(
    session: Session, launches: Mapping[int, Sequence[_Container]], agents: Mapping[str, Agent], newest: int
) -> Session | None:
    """Return the session in its newest launch that can be adopted; None where there is none."""
    oldest = session.generation + (session.state is not SessionState.PREPARING)
    for generation, containers in sorted(launches.items(), reverse=True):
        if oldest <= generation <= newest:
            as_it_runs = _in_launch(session, containers, agents)
            if as_it_runs is not None:
                return as_it_runs
    return None


def _in_launch(session: Session, containers: Sequence[_Container], agents: Mapping[str, Agent]) -> Session | None:
    """Return the session in the launch that these are the containers of; None where that is not whole."""
    size, (least, most) = len(containers), session.spec.sizes
    entries = {one.entry.kernel_id: one.entry for one in containers}
    places = {one.entry.kernel_id: one.agent_id for one in containers}
    if not least <= size <= most or entries.keys() != {kernel.id for kernel in session.possible_kernels[:size]}:
        return None
    have_begun = all(entry.released and entry.state in {"running", *EXITED} for entry in entries.values())
    public_key = entries[session.main.id].public_key
    if not have_begun or public_key is None:
        return None
    kernels = {kernel.id: kernel for kernel in session.possible_kernels}
    allocations = {id_: _allocation(agents[agent_id], kernels[id_], entries[id_]) for id_, agent_id in places.items()}
    if None in allocations.values():
        return None
    spans_agents = len(set(places.values())) > 1
    return replace(
        session,
        kernels=tuple(replace(kernel, allocation=allocations.get(id_)) for id_, kernel in kernels.items()),
        spare=(),
        generation=containers[0].entry.generation,
        public_key=public_key,
        placed_mode="multi-node" if spans_agents else "single-node",
    ).of_size(size if session.spec.is_elastic else None)


def _allocation(agent: Agent, kernel: Kernel, entry: KernelReport) -> Allocation | None:
    """Return what a kernel's container has of its agent.

    None where that is a GPU that the agent lacks now, or more of one than the kernel requests, or than it is.
    """
    gpus = {gpu.uuid: gpu for gpu in agent.gpus}
    parts = sum(share.amount or 0 for share in entry.gpus)
    if parts > kernel.slots.fgpu or not gpus.keys() >= {share.uuid for share in entry.gpus}:
        return None
    if any(share.capacity is not None and (share.amount or 0) > share.capacity for share in entry.gpus):
        return None
    shares = tuple(
        GpuShare(share.uuid, gpus[share.uuid].capacity, whole=True, capacity=gpus[share.uuid].capacity)
        if share.amount is None
        else GpuShare(share.uuid, share.amount, whole=False, capacity=share.capacity)
        for share in entry.gpus
    )
    nodes = {gpus[share.uuid].numa_node for share in entry.gpus}
    return Allocation(agent.id, shares, tuple(sorted(node for node in nodes if node is not None)))
