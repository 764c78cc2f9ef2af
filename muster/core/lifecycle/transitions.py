"""How a session changes: one transition table, events out, without side effects.

States in, events out, after dask.distributed's worker state machine and kubernetes' observe-and-reconcile. The store
applies the events, and drops one whose `from_state` no longer holds: the next decision reads the current state.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from muster.core.agents.agent import AgentState
from muster.core.lifecycle.end_signals import leaving, may_leave, needs_signal
from muster.core.model.plan import Placement, Plan, Preemption
from muster.core.model.reported import Reports
from muster.core.model.reservation import Reservation
from muster.core.model.session import Kernel, LaunchStep, Result, Session, SessionState, size_text
from muster.core.model.snapshot import Snapshot
from muster.core.values.errors import IllegalTransitionError
from muster.core.values.units import exact_duration

_S = SessionState
TRANSITIONS: Mapping[SessionState, frozenset[SessionState]] = {
    _S.PENDING: frozenset({_S.PENDING, _S.SCHEDULED, _S.RUNNING, _S.CANCELLED}),
    _S.SCHEDULED: frozenset({_S.PREPARING, _S.RUNNING, _S.PENDING, _S.TERMINATING}),
    _S.PREPARING: frozenset({_S.PREPARING, _S.RUNNING, _S.PENDING, _S.ERROR, _S.TERMINATING}),
    _S.RUNNING: frozenset({_S.RUNNING, _S.TERMINATING}),
    _S.TERMINATING: frozenset({_S.TERMINATING, _S.TERMINATED, _S.PENDING, _S.SCHEDULED, _S.RUNNING}),
    _S.TERMINATED: frozenset(),
    _S.CANCELLED: frozenset(),
    _S.ERROR: frozenset(),
}
MAX_LAUNCHES = 3
FitsElsewhere = Callable[[Collection[str]], bool]
"""Says whether others than these agents could hold a session."""
RETRY_DELAY_S = 5.0
_MOST_DOUBLINGS = 6
NOT_PLACED: Mapping[str, Any] = {"placed_mode": None, "step": None, "progress": (), "given": None}
NO_CONTAINER: Mapping[str, Any] = {
    "allocation": None,
    "container_id": None,
    "container_state": None,
    "address": None,
    "ssh_port": None,
    "exit_code": None,
    "oom_killed": False,
    "started_at": None,
    "finished_at": None,
    "gpu_problem": None,
    "boot_id": None,
    "agent_generation": None,
    "signals": 0,
    "signal_receivers": 0,
}
NO_SIGNAL: Mapping[str, Any] = {"signals": 0, "signalled_at": None, "leaves_at": None, "ends_for": None}


@dataclass(frozen=True, slots=True)
class Event:
    """A change of one session. `to_state` equal to `from_state` without a reason only records facts.

    It is dropped where the session is no longer in `from_state`, a field that it `expects` has another value, or one of
    the agents that the session is `placed_on` has been drained; a placement also where there is a reservation by now
    that is not among the `reservations` it was decided under.
    """

    session_id: str
    at: float
    from_state: SessionState
    to_state: SessionState
    reason: str = ""
    session: Mapping[str, Any] = field(default_factory=dict)
    kernels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    expects: Mapping[str, Any] = field(default_factory=dict)
    placed_on: frozenset[str] = frozenset()
    reservations: tuple[Reservation, ...] = ()

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
    """Return the event. Raises IllegalTransitionError when the table does not allow it."""
    if to not in TRANSITIONS[session.state]:
        raise IllegalTransitionError(
            f"session {session.name} ({session.id}) cannot go from {session.state} to {to}"
            f" ({reason}); its last change was: {session.reason or 'submitted'}"
        )
    if to in {_S.TERMINATED, _S.CANCELLED, _S.ERROR}:
        changes["ended_at"] = now
    return Event(session.id, now, session.state, to, reason, changes, kernels or {})


def place(plan: Plan, snapshot: Snapshot) -> list[Event]:
    """Return PENDING → SCHEDULED for every placement of the plan."""
    placed = {placement.session_id for placement in plan.placements}
    sessions = {session.id: session for session in snapshot.pending if session.id in placed} if placed else {}
    return [_placed(sessions[placement.session_id], placement, snapshot) for placement in plan.placements]


def _placed(session: Session, placement: Placement, snapshot: Snapshot) -> Event:
    event = transition(
        session,
        _S.SCHEDULED,
        _placed_text(session, placement),
        snapshot.now,
        placed_mode=placement.mode,
        wait=None,
        retry_at=None,
        stranded_on=(),
        moved_for=None,
        given=len(placement.allocations) if session.spec.is_elastic else None,
        kernels={kernel_id: {"allocation": a} for kernel_id, a in placement.allocations.items()},
    )
    # A user may have held or updated it, and an administrator drained or reserved an agent, since they were read.
    agents = frozenset([allocation.agent_id for allocation in placement.allocations.values()])
    expects = {"held_by": session.held_by, "updates": session.updates}
    return replace(event, expects=expects, placed_on=agents, reservations=snapshot.reservations)


def _placed_text(session: Session, placement: Placement) -> str:
    text = f"placed on {', '.join(sorted({a.agent_id for a in placement.allocations.values()}))}"
    size = size_text(session.spec, len(placement.allocations))
    return f"{text}, with {size} containers" if session.spec.is_elastic else text


def preempt(plan: Plan, snapshot: Snapshot, asked: frozenset[str] = frozenset()) -> list[Event]:
    """Return RUNNING → TERMINATING for every preemption of the plan; a session that may be requeued is, after that.

    A session that does not run any more has given its capacity already, or is about to. One that asks for a signal
    gets it and its time first. It stays if the plan no longer needs its place by then. None is preempted yet for a
    session that also needs the place of one on agents that are `asked`: that one's command may have ended.
    """
    running = {session.id: session for session in snapshot.placed if session.state is _S.RUNNING}
    requested = {
        preemption.session_id: preemption for preemption in plan.preemptions if preemption.session_id in running
    }
    unsure = {p.for_session_id for key, p in requested.items() if not asked.isdisjoint(running[key].agents)}
    sure = {key: preemption for key, preemption in requested.items() if preemption.for_session_id not in unsure}
    events = [_next_step(running[key], preemption, snapshot.now) for key, preemption in sure.items()]
    events += [
        _stays(session, snapshot.now)
        for session in running.values()
        if session.leaves_at is not None and session.ends_for is None and session.id not in requested
    ]
    return [event for event in events if event is not None]


def _stays(session: Session, now: float) -> Event:
    reason = "its place is not needed any more: it goes on"
    event = transition(session, _S.RUNNING, reason, now, leaves_at=None)
    # The drain of its agent may end it at that time, since it was read.
    return replace(event, expects={"ends_for": None})


def _next_step(session: Session, preemption: Preemption, now: float) -> Event | None:
    """Return the end of a session whose place is needed, or the signal before that; None while its time lasts."""
    if begun := leaving(session, now):
        reason = f"{_first_the_signal(session, begun)}before its place is taken: {preemption.message}"
        return transition(session, _S.RUNNING, reason, now, **begun)
    return _preempted(session, preemption, now) if may_leave(session, now) else None


def _first_the_signal(session: Session, changes: Mapping[str, Any]) -> str:
    name = session.spec.signal_name
    return f"{name} goes to its command " if "signals" in changes else f"its command, which got {name}, has time left "


def _preempted(session: Session, preemption: Preemption, now: float) -> Event:
    event = _ends_or_is_requeued(session, preemption.message, now)
    if not preemption.moves:
        return event
    return replace(event, session={**event.session, "moved_for": preemption.for_session_id})


def hold(session: Session, by: str, now: float) -> Event:
    """Hold a session: it stays PENDING until it is released. Raises IllegalTransitionError when it is not PENDING."""
    _must_be_pending(session, "held")
    event = transition(session, _S.PENDING, f"held by {by}", now, held_by=by, wait=None)
    return replace(event, expects={"held_by": None})


def release(session: Session, by: str, now: float) -> Event:
    """Release a session into the queue again. Raises IllegalTransitionError when it is not PENDING.

    A delay after a failed launch is over with that: the user wants it to start.
    """
    _must_be_pending(session, "released")
    event = transition(session, _S.PENDING, f"released by {by}", now, held_by=None, retry_at=None, wait=None)
    return replace(event, expects={"held_by": session.held_by})


def _must_be_pending(session: Session, what: str) -> None:
    if session.state is not _S.PENDING:
        raise IllegalTransitionError(f"session {session.name} is {session.state}; only a PENDING one can be {what}")


def back_to_the_queue(session: Session, reason: str, now: float) -> Event:
    """Return → PENDING, at its old place in the queue: not the session's fault."""
    kernels = {kernel.id: {"allocation": None} for kernel in session.kernels}
    return transition(session, _S.PENDING, reason, now, **NOT_PLACED, kernels=kernels)


def image_gone(session: Session, gone: Mapping[str, Iterable[str]], now: float) -> Event:
    """Return → PENDING for a launch before which images were removed from agents; `gone` holds them by image.

    They are pulled when the session is placed there again, a moment later. It is no failed launch, since neither the
    session nor an agent is to blame.
    """
    images = "; ".join(f"{image} on {', '.join(sorted(agents))}" for image, agents in sorted(gone.items()))
    event = back_to_the_queue(session, f"removed before the launch: {images}", now)
    return replace(event, session={**event.session, "retry_at": now + RETRY_DELAY_S})


def pull(session: Session, missing: Mapping[str, Iterable[str]], now: float) -> Event:
    """Return SCHEDULED → PREPARING while images come; `missing` holds, by image, the agents that lack it."""
    images = "; ".join(f"{image} on {', '.join(sorted(agents))}" for image, agents in sorted(missing.items()))
    return transition(session, _S.PREPARING, f"pulling {images}", now, step=LaunchStep.PULLING)


def launch(session: Session, generation: int, public_key: str, now: float, reports: Reports) -> Event:
    """Return → PREPARING; also from STARTING, when a launch was cut short and must be repeated with new keys.

    `reports` are the last ones of its agents.
    """
    again = session.step is LaunchStep.STARTING
    kernels: dict[str, dict[str, Any]] = {}
    for kernel in session.kernels:
        report = reports.get(kernel.allocation.agent_id) if kernel.allocation else None
        if report is not None:
            kernels[kernel.id] = {"boot_id": report.boot_id, "agent_generation": report.generation}
    return transition(
        session,
        _S.PREPARING,
        "the launch was cut short and is repeated" if again else "launching",
        now,
        generation=generation,
        public_key=public_key,
        step=LaunchStep.STARTING,
        progress=(),
        kernels=kernels,
    )


def all_started(session: Session, kernels: Mapping[str, Mapping[str, Any]], now: float) -> Event:
    """Return the change after every kernel on every agent answers: their commands may begin."""
    return transition(session, _S.PREPARING, "all containers answer", now, step=LaunchStep.RELEASING, kernels=kernels)


def all_run(session: Session, kernels: Mapping[str, Mapping[str, Any]], now: float) -> Event:
    fresh: dict[str, Any] = {"started_at": now, "step": None, "notice": None, "warned_at": None, "failed_on": ()}
    fresh |= NO_SIGNAL
    return transition(session, _S.RUNNING, "running", now, **fresh, kernels=kernels)


def nowhere(_agent_ids: Collection[str]) -> bool:
    """Return False: no others could hold the session."""
    return False


def launch_failed(
    session: Session,
    error: str,
    now: float,
    *,
    permanent: bool,
    failed_on: Iterable[str] = (),
    fits_elsewhere: FitsElsewhere = nowhere,
) -> Event:
    """Return → PENDING with a delay that doubles each time; ERROR when trying again cannot help, or has not.

    None of its commands may have begun. A retry avoids the agents that it `failed_on`. If all failures are one agent's,
    which may be the cause, and it `fits_elsewhere`, it is not given up.
    """
    attempts = session.attempts + 1
    failed_on = tuple(sorted({*session.failed_on, *failed_on}))
    if permanent or (attempts >= MAX_LAUNCHES and not (len(failed_on) == 1 and fits_elsewhere(failed_on))):
        freed = {kernel.id: {"allocation": None} for kernel in session.kernels}
        changes: dict[str, Any] = {"result": Result.FAILURE, "step": None, "progress": (), "attempts": attempts}
        return transition(session, _S.ERROR, error, now, kernels=freed, **changes)
    event = back_to_the_queue(session, error, now)
    retry_at = now + _retry_delay_s(attempts - 1)
    return replace(event, session={**event.session, "attempts": attempts, "retry_at": retry_at, "failed_on": failed_on})


def _retry_delay_s(failures: int) -> float:
    """Return the delay after a launch that failed, and this many before it."""
    return RETRY_DELAY_S * 2.0 ** min(failures, _MOST_DOUBLINGS)


def retry_at_once(snapshot: Snapshot) -> list[Event]:
    """Return PENDING → PENDING for sessions that would wait longer than any delay: the clock was set back."""
    return [
        transition(session, _S.PENDING, "", snapshot.now, retry_at=None)
        for session in snapshot.waiting_for_a_time
        if session.retry_at is not None
        and session.retry_at > snapshot.now + _retry_delay_s(max(session.attempts, session.requeues))
    ]


def fail_begun(session: Session, reason: str, now: float) -> Event:
    """Return → TERMINATING for a session that its agents fail when some of its commands have begun, or may have.

    It is stopped everywhere, and queued again only with `--requeue`, after a delay.
    """
    event = _ends_or_is_requeued(session, reason, now)
    if not session.spec.requeue:
        return event
    return replace(event, session={**event.session, "retry_at": now + _retry_delay_s(session.requeues)})


def terminate(session: Session, reason: str, result: Result, now: float, exit_code: int | None = None) -> Event:
    """Return CANCELLED from PENDING, otherwise TERMINATING, without a later launch or place in the queue."""
    if session.state is _S.PENDING:
        return transition(session, _S.CANCELLED, reason, now, wait=None)
    if session.ends_for_good:
        raise IllegalTransitionError(f"session {session.name} ({session.id}) is being ended already: {session.reason}")
    changes: dict[str, Any] = {"result": result, "exit_code": exit_code, "requeue_after_end": False}
    return transition(session, _S.TERMINATING, reason, now, step=None, progress=(), **changes)


def end_by_drain(session: Session, owner: str, now: float) -> Event | None:
    """Return the end of a session whose agent is drained, or first the signal that it asks for; None while it leaves.

    The end comes once the signal's time is over.
    """
    if not needs_signal(session):
        return end_by_user(session, owner, now)
    if session.ends_for is not None:
        return None
    why = f"ended by {owner}"
    begun = leaving(session, now)
    reason = f"{_first_the_signal(session, begun)}before it is {why}"
    event = transition(session, _S.RUNNING, reason, now, **begun, ends_for=why)
    return replace(event, expects={"ends_for": None})


def end_by_user(session: Session, owner: str, now: float) -> Event:
    """Return the end by `muster terminate`: FAILURE of a batch session, SUCCESS of an interactive one."""
    result = Result.FAILURE if session.spec.is_batch else Result.SUCCESS
    return terminate(session, f"ended by {owner}", result, now)


def lose(snapshot: Snapshot) -> list[Event]:
    """Return the changes of all sessions on LOST agents.

    A launch goes back to the queue where none of its commands can have begun. Any other one counts as running: it ends,
    or is queued again if it may be.
    """
    lost = {agent.id for agent in snapshot.agents if agent.state is AgentState.LOST}
    if not lost:
        return []
    events = []
    for session in snapshot.placed:
        gone = [agent_id for agent_id in session.agents if agent_id in lost]
        if not gone:
            continue
        if session.state is _S.RUNNING:
            events.append(_loses_an_agent(session, f"agent {gone[0]} was lost", snapshot.now))
        elif session.may_have_begun:
            reason = f"agent {gone[0]} was lost during the launch, when commands may have begun"
            events.append(_loses_an_agent(session, reason, snapshot.now))
        elif session.state is _S.PREPARING:
            events.append(back_to_the_queue(session, f"agent {gone[0]} was lost during the launch", snapshot.now))
        elif session.state is _S.TERMINATING and lost.issuperset(session.agents):
            events.append(ended(session, {}, snapshot.now))
    return events


def _loses_an_agent(session: Session, reason: str, now: float) -> Event:
    event = _ends_or_is_requeued(session, reason, now)
    if not session.spec.requeue:
        return event
    return replace(event, session={**event.session, "stranded_on": session.agents})


def _ends_or_is_requeued(session: Session, reason: str, now: float) -> Event:
    if not session.spec.requeue:
        return terminate(session, reason, Result.FAILURE, now)
    reason = f"{reason}; the session is queued again"
    return transition(session, _S.TERMINATING, reason, now, step=None, requeue_after_end=True)


def host_rebooted(session: Session, agent_id: str, kernels: Mapping[str, Mapping[str, Any]], now: float) -> Event:
    """Return RUNNING → TERMINATING of a session whose kernels a reboot of their host ended."""
    return replace(_ends_or_is_requeued(session, f"agent {agent_id} was rebooted", now), kernels=kernels)


def restart(session: Session, by: str, now: float) -> Event:
    """Return RUNNING → TERMINATING, to be launched again where it is.

    Raises IllegalTransitionError when it is not RUNNING.
    """
    if session.state is not _S.RUNNING:
        raise IllegalTransitionError(f"session {session.name} is {session.state}; only a RUNNING one can be restarted")
    step = LaunchStep.RESTARTING
    return transition(session, _S.TERMINATING, f"restarted by {by}", now, step=step, progress=())


def extend(session: Session, seconds: int, by: str, now: float) -> Event:
    """Return RUNNING → RUNNING with so much more time. A warning of the earlier end is withdrawn."""
    extended = replace(session, extended_s=session.extended_s + seconds)
    limit = exact_duration(extended.time_limit or 0)
    reason = f"extended by {exact_duration(seconds)} by {by}: its time limit is {limit}"
    notice = {} if session.warned_at is not None else {"notice": None}
    event = transition(session, _S.RUNNING, reason, now, extended_s=extended.extended_s, **notice)
    return replace(event, expects={"extended_s": session.extended_s})


def _launched_again(session: Session, now: float) -> Event:
    """Return TERMINATING → SCHEDULED on the same agents; their obstacles are found before the launch."""
    cleared = {name: value for name, value in NO_CONTAINER.items() if name != "allocation"}
    event = transition(
        session,
        _S.SCHEDULED,
        f"{session.reason}: everything of it is stopped",
        now,
        step=None,
        progress=(),
        attempts=0,
        started_at=None,
        kernels={kernel.id: cleared for kernel in session.kernels},
    )
    # A user may have ended it for good since it was read.
    return replace(event, expects={"step": LaunchStep.RESTARTING})


def ended(session: Session, kernels: Mapping[str, Mapping[str, Any]], now: float) -> Event:
    """Return TERMINATING → TERMINATED when nothing of it runs any more, or → PENDING if it is to be queued again.

    A session that is restarted goes → SCHEDULED at the place that it has.
    """
    if session.step is LaunchStep.RESTARTING:
        return _launched_again(session, now)
    if not session.requeue_after_end:
        return transition(session, _S.TERMINATED, session.reason, now, kernels=kernels)
    kernels = {kernel.id: NO_CONTAINER for kernel in session.kernels}
    again = {"requeue_after_end": False, "requeues": session.requeues + 1, "attempts": 0, "started_at": None}
    event = transition(session, _S.PENDING, session.reason, now, **NOT_PLACED, **again, kernels=kernels)
    # A user may have ended it for good since it was read.
    return replace(event, expects={"requeue_after_end": True})


def changed_facts(kernels: Iterable[Kernel], reported: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, by kernel id, those of the reported facts that differ from the recorded ones."""
    changes = {}
    for kernel in kernels:
        new = {name: value for name, value in reported.get(kernel.id, {}).items() if getattr(kernel, name) != value}
        if new:
            changes[kernel.id] = new
    return changes
