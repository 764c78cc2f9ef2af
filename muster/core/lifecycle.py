"""How a session changes: one transition table, events out, nothing done here.

States in, events out (after dask.distributed's worker state machine and kubernetes' observe-and-reconcile): the store
applies the events, and drops one whose `from_state` no longer holds, since the next pass reads again what is true.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.core.agent import AgentState
from muster.core.duration import format_duration
from muster.core.errors import IllegalTransitionError
from muster.core.plan import Plan
from muster.core.session import Kernel, Result, Session, SessionState
from muster.core.snapshot import Snapshot

_S = SessionState
TRANSITIONS: Mapping[SessionState, frozenset[SessionState]] = {
    _S.PENDING: frozenset({_S.SCHEDULED, _S.CANCELLED}),
    _S.SCHEDULED: frozenset({_S.PREPARING, _S.PENDING, _S.TERMINATING}),
    _S.PREPARING: frozenset({_S.PREPARING, _S.RUNNING, _S.PENDING, _S.ERROR, _S.TERMINATING}),
    _S.RUNNING: frozenset({_S.TERMINATING}),
    _S.TERMINATING: frozenset({_S.TERMINATED}),
    _S.TERMINATED: frozenset(),
    _S.CANCELLED: frozenset(),
    _S.ERROR: frozenset(),
}
MAX_LAUNCHES = 3
RETRY_DELAY_S = 5.0
_FACTS = ("container_id", "address", "ssh_port", "exit_code", "oom_killed", "started_at", "finished_at")


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one session. `to_state` equal to `from_state` without a reason only records facts."""

    session_id: str
    at: float
    from_state: SessionState
    to_state: SessionState
    reason: str = ""
    session: Mapping[str, Any] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def in_story(self) -> bool:
        return bool(self.reason)


def transition(
    session: Session,
    to: SessionState,
    reason: str,
    now: float,
    *,
    kernels: Mapping[str, Mapping[str, Any]] | None = None,
    **changes: object,
) -> Event:
    """Raises IllegalTransitionError when the table does not allow it."""
    if to not in TRANSITIONS[session.state]:
        raise IllegalTransitionError(
            f"session {session.name} ({session.id}) cannot go from {session.state} to {to}"
            f" ({reason}); its last change was: {session.reason or 'submitted'}"
        )
    if to in {_S.TERMINATED, _S.CANCELLED, _S.ERROR}:
        changes["ended_at"] = now
    return Event(session.id, now, session.state, to, reason, changes, kernels or {})


def place(plan: Plan, snapshot: Snapshot) -> list[Event]:
    """PENDING → SCHEDULED for every placement of the plan."""
    sessions = {session.id: session for session in snapshot.pending}
    return [
        transition(
            sessions[placement.session_id],
            _S.SCHEDULED,
            f"placed on {', '.join(sorted({a.agent_id for a in placement.allocations.values()}))}",
            snapshot.now,
            placed_mode=placement.mode,
            wait={},
            retry_at=None,
            kernels={kernel_id: {"allocation": a} for kernel_id, a in placement.allocations.items()},
        )
        for placement in plan.placements
    ]


def take_back(snapshot: Snapshot) -> list[Event]:
    """SCHEDULED → PENDING for sessions one of whose agents was lost before the launch."""
    alive = {agent.id for agent in snapshot.agents if agent.state is AgentState.ALIVE}
    events = []
    for session in snapshot.placed:
        lost = [agent_id for agent_id in session.agents if agent_id not in alive]
        if lost and session.state is _S.SCHEDULED:
            reason = f"agent {lost[0]} was lost before the launch"
            freed = _freed(session.kernels)
            events.append(transition(session, _S.PENDING, reason, snapshot.now, placed_mode=None, kernels=freed))
    return events


def launch(session: Session, generation: int, public_key: str, now: float) -> Event:
    """SCHEDULED → PREPARING; also PREPARING again, when a launch was cut short and must be repeated with new keys."""
    again = session.state is _S.PREPARING
    return transition(
        session,
        _S.PREPARING,
        "the launch was cut short and is repeated" if again else "launching",
        now,
        generation=generation,
        public_key=public_key,
        attempts=session.attempts + (0 if again else 1),
    )


def terminate(session: Session, reason: str, result: Result, now: float, exit_code: int | None = None) -> Event:
    """Ends a session that has not ended: CANCELLED from PENDING, otherwise TERMINATING."""
    if session.state is _S.PENDING:
        return transition(session, _S.CANCELLED, reason, now, wait={})
    return transition(session, _S.TERMINATING, reason, now, result=result, exit_code=exit_code)


def end_by_user(session: Session, owner: str, now: float) -> Event:
    """What `muster terminate` asks for: a batch session that is ended early has failed, an interactive one has not."""
    result = Result.FAILURE if session.spec.is_batch else Result.SUCCESS
    return terminate(session, f"ended by {owner}", result, now)


def observe(snapshot: Snapshot, reports: Mapping[str, Mapping[str, Any]]) -> list[Event]:
    """What the agents' reports, by agent id, mean for the sessions; an agent without a report says nothing."""
    events = []
    for session in snapshot.placed:
        if not session.agents or any(agent_id not in reports for agent_id in session.agents):
            continue
        seen = _seen(session, reports)
        event = None
        if session.state is _S.PREPARING:
            event = _adopted(session, seen, reports, snapshot.now)
        elif session.state is _S.RUNNING:
            event = _ended(session, seen, snapshot.now) or _facts_only(session, seen, snapshot.now)
        if event:
            events.append(event)
    return events


def record(
    session: Session, outcomes: Mapping[str, Mapping[str, Any]], reports: Mapping[str, Mapping[str, Any]], now: float
) -> list[Event]:
    """What the agents made of the session; `outcomes` by agent id, without those that did not answer."""
    if any(agent_id not in outcomes for agent_id in session.agents):
        return []
    if session.state is _S.PREPARING:
        return [_launched(session, outcomes, reports, now)]
    if session.state is _S.TERMINATING and all(o["outcome"] == "stopped" for o in outcomes.values()):
        return [_terminated(session, outcomes, now)]
    return []


def _seen(session: Session, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The facts of this session's present launch, by kernel id."""
    return {
        entry["kernel_id"]: {**{name: entry[name] for name in _FACTS}, "container_state": entry["state"]}
        for agent_id in session.agents
        for entry in reports[agent_id]["kernels"]
        if entry["session_id"] == session.id and entry["generation"] == session.generation
    }


def _changed(session: Session, seen: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    changes = {}
    for kernel in session.kernels:
        facts = seen.get(kernel.id, {})
        new = {name: value for name, value in facts.items() if getattr(kernel, name) != value}
        if new:
            changes[kernel.id] = new
    return changes


def _facts_only(session: Session, seen: Mapping[str, Mapping[str, Any]], now: float) -> Event | None:
    changes = _changed(session, seen)
    return Event(session.id, now, session.state, session.state, kernels=changes) if changes else None


def _adopted(
    session: Session, seen: Mapping[str, Mapping[str, Any]], reports: Mapping[str, Mapping[str, Any]], now: float
) -> Event | None:
    """A launch whose end nobody recorded, but all of whose kernels were released: it needs no repetition."""
    released = {
        entry["kernel_id"]
        for agent_id in session.agents
        for entry in reports[agent_id]["kernels"]
        if entry["released"] and entry["state"] in {"running", "exited"}
    }
    if all(kernel.id in seen and kernel.id in released for kernel in session.kernels):
        return transition(session, _S.RUNNING, "all kernels run", now, started_at=now, kernels=_changed(session, seen))
    return None


def _launched(
    session: Session, outcomes: Mapping[str, Mapping[str, Any]], reports: Mapping[str, Mapping[str, Any]], now: float
) -> Event:
    failures = [outcome for outcome in outcomes.values() if outcome["outcome"] == "failed"]
    if not failures:
        kernels = _changed(session, _seen(session, reports))
        return transition(session, _S.RUNNING, "all kernels run", now, started_at=now, kernels=kernels)
    error = str(failures[0]["error"])
    if any(outcome["permanent"] for outcome in failures) or session.attempts >= MAX_LAUNCHES:
        return transition(session, _S.ERROR, error, now, result=Result.FAILURE, kernels=_freed(session.kernels))
    return transition(
        session,
        _S.PENDING,
        error,
        now,
        placed_mode=None,
        retry_at=now + RETRY_DELAY_S * 2 ** (session.attempts - 1),
        kernels=_freed(session.kernels),
    )


def _freed(kernels: Iterable[Kernel]) -> dict[str, dict[str, Any]]:
    return {kernel.id: {"allocation": None} for kernel in kernels}


def _terminated(session: Session, outcomes: Mapping[str, Mapping[str, Any]], now: float) -> Event:
    kernels: dict[str, dict[str, Any]] = {}
    for outcome in outcomes.values():
        for word in outcome.get("last_words", ()):
            facts = {name: word[name] for name in ("exit_code", "oom_killed", "started_at", "finished_at")}
            kernels[word["kernel_id"]] = {**facts, "container_state": "exited"}
    return transition(session, _S.TERMINATED, session.reason, now, kernels=kernels)


@dataclass(frozen=True, slots=True)
class _End:
    reason: str
    result: Result
    exit_code: int | None = None


def _ended(session: Session, seen: Mapping[str, Mapping[str, Any]], now: float) -> Event | None:
    """RUNNING → TERMINATING when the command ended, a kernel died or vanished, or the time is up."""
    end = _failure(session, seen) or _success(session, seen) or _time_is_up(session, now)
    if end is None:
        return None
    return transition(
        session,
        _S.TERMINATING,
        end.reason,
        now,
        result=end.result,
        exit_code=end.exit_code,
        kernels=_changed(session, seen),
    )


def _decides(session: Session, kernel: Kernel) -> bool:
    """Whether it runs the session's command; a role with a command of its own serves the others."""
    runs_it = kernel.rank == 0 or (session.spec.run_on == "all" and kernel.command == session.main.command)
    return session.spec.is_batch and runs_it


def _has_ended(facts: Mapping[str, Any]) -> bool:
    return facts["container_state"] in {"exited", "dead"}


def _failure(session: Session, seen: Mapping[str, Mapping[str, Any]]) -> _End | None:
    """Of the first kernel in rank order that failed: the others often fail because of it."""
    for kernel in session.kernels:
        facts = seen.get(kernel.id)
        if facts is None:
            return _End(f"the container of {kernel.name} has vanished from its agent", Result.FAILURE)
        if not _has_ended(facts):
            continue
        code = int(facts["exit_code"] or 0)
        if facts["oom_killed"]:
            return _End(f"{kernel.name} ran out of memory", Result.FAILURE, code)
        if _decides(session, kernel) and code:
            return _End(f"the command ended with exit code {code} in {kernel.name}", Result.FAILURE, code)
        if code or kernel.command is None:
            return _End(f"{kernel.name} ended unexpectedly with exit code {code}", Result.FAILURE, code)
    return None


def _success(session: Session, seen: Mapping[str, Mapping[str, Any]]) -> _End | None:
    deciding = [kernel for kernel in session.kernels if _decides(session, kernel)]
    if deciding and all(_has_ended(seen[kernel.id]) for kernel in deciding):
        return _End("the command ended with exit code 0", Result.SUCCESS, 0)
    return None


def _time_is_up(session: Session, now: float) -> _End | None:
    limit = session.spec.time_limit
    if limit is None or session.started_at is None or now < session.started_at + limit:
        return None
    return _End(f"its time limit of {format_duration(limit)} is reached", Result.FAILURE)
