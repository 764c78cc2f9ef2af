"""Find the smallest changes that would let a session start, by replaying `schedule` with each of them.

Each suggestion was tried: with it, `schedule` places the session.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from muster.core.model.plan import Placement
from muster.core.model.session import Session
from muster.core.model.snapshot import Snapshot
from muster.core.model.wait import Wait, WaitCode
from muster.core.scheduling.limits import spell_counted
from muster.core.scheduling.schedule import schedule
from muster.core.whatif import alternatives
from muster.core.whatif.explain import HOPELESS
from muster.core.whatif.hypothesis import Later, LimitRaised, SpecChange, Suggestion
from muster.core.whatif.replay import Replays, ahead_of

MOST_REPLAYS = 60
_MOST_ROUNDS = 4
_BEFORE_PLACEMENT = frozenset({WaitCode.HELD, WaitCode.BEGIN, WaitCode.DEPENDENCY, WaitCode.ARRAY, WaitCode.RETRY})
_SHAPE = (
    alternatives.another_mode,
    alternatives.another_group,
    alternatives.fewer_conditions,
    alternatives.less_of_one_slot,
    alternatives.fewer_kernels,
)
_PASSING = (
    alternatives.a_shorter_time_limit,
    alternatives.agents_back,
    alternatives.a_higher_priority,
    alternatives.others_move,
    alternatives.others_end,
)


@dataclass(frozen=True, slots=True)
class StartForecast:
    """A forecast: where a session would start now, or why it would not and what would let it."""

    session: Session
    placement: Placement | None
    wait: Wait | None
    suggestions: tuple[Suggestion, ...] = ()

    @property
    def hopeless(self) -> bool:
        return self.wait is not None and self.wait.code in HOPELESS


def would_start(snapshot: Snapshot, new: Sequence[Session]) -> tuple[StartForecast, ...]:
    """Return the next decision about the new sessions; for the first that would wait, with what would let it start."""
    snapshot = replace(snapshot, sessions=(*snapshot.sessions, *new))
    plan = schedule(snapshot)
    placements = {placement.session_id: placement for placement in plan.placements}
    answers = []
    explained = False
    for session in new:
        wait = None if session.id in placements else plan.waits[session.id]
        suggestions = what_would_help(snapshot, session) if wait and not explained else ()
        explained = explained or wait is not None
        answers.append(StartForecast(session, placements.get(session.id), wait, suggestions))
    return tuple(answers)


def what_would_help(snapshot: Snapshot, session: Session, most: int = MOST_REPLAYS) -> tuple[Suggestion, ...]:
    """Return changes that each let a pending session of the snapshot start, the smallest first.

    None if it starts anyway.
    """
    plan = schedule(snapshot)
    wait = plan.waits.get(session.id)
    if wait is None:
        return ()
    replays = Replays(snapshot, ahead_of(session, snapshot, plan), session, most - 1)
    unlike = {suggestion.text: suggestion for suggestion in _suggestions(replays, wait)}
    return tuple(sorted(unlike.values(), key=lambda suggestion: (suggestion.effort, suggestion.text)))


def _suggestions(replays: Replays, wait: Wait) -> list[Suggestion]:
    """Return suggestions. Refusals (a hold, a limit, …) are taken away step by step before placement is tried."""
    found: list[Suggestion] = []
    steps: list[Suggestion] = []
    for _ in range(_MOST_ROUNDS):
        if wait.code not in _BEFORE_PLACEMENT:
            found += [_joined([*steps, suggestion]) for suggestion in _look_around(replays, wait)]
        step = _step_past(wait, replays)
        if step is None:
            return found
        steps.append(step)
        replays.before = tuple(change for step in steps for change in step.changes)
        plan = replays.plan()
        if plan is None:
            return found
        if replays.session.id not in plan.waits:
            return [*found, _joined(steps)]
        wait = plan.waits[replays.session.id]
    return found


def _look_around(replays: Replays, wait: Wait) -> list[Suggestion]:
    looks = _SHAPE if wait.code in HOPELESS else (*_SHAPE, *_PASSING)
    found = [suggestion for look in looks for suggestion in look(replays)]
    return found or list(alternatives.less_of_all_slots(replays))


def _step_past(wait: Wait, replays: Replays) -> Suggestion | None:
    """Return what takes away an obstacle that the session meets before it is placed."""
    session = replays.session
    spec = session.spec
    step: Suggestion | None = None
    match wait.code:
        case WaitCode.HELD:
            step = Suggestion("release it", (SpecChange({"hold": False}),), 0.05)
        case WaitCode.BEGIN:
            step = Suggestion("no begin time", (SpecChange({"begin": None}),), 0.05)
        case WaitCode.DEPENDENCY | WaitCode.NEVER_RUNS if spec.dependencies:
            free = SpecChange({"after": (), "after_ok": (), "after_any": ()})
            step = Suggestion("no sessions that it waits for", (free,), 0.3)
        case WaitCode.ARRAY if spec.array:
            array = spec.array.partition("%")[0]
            text = f"array {array} instead of {spec.array}"
            step = Suggestion(text, (SpecChange({"array": array}),), 0.3, ("--array", array))
        case WaitCode.LIMIT | WaitCode.NEVER_RUNS if wait.limit:
            raising = LimitRaised(wait.limit)
            new, old = (spell_counted(wait.limit.counted, amount) for amount in (raising.value, wait.limit.value))
            text = f"a limit of {new} instead of {old} for {wait.limit.scope}"
            step = Suggestion(text, (raising,), 1.5 + alternatives.share(wait.limit.value, raising.value))
        case WaitCode.WINDOW if (end := replays.window_end()) is not None:
            text = "wait for the end of the reservation"
            step = Suggestion(text, (Later(at=end),), 2.0, starts_at=end)
        case WaitCode.RETRY if session.retry_at:
            text = "wait until its launch is tried again"
            step = Suggestion(text, (Later(at=session.retry_at),), 2.0, starts_at=session.retry_at)
    return step


def _joined(steps: Sequence[Suggestion]) -> Suggestion:
    return Suggestion(
        text=", and ".join(step.text for step in steps),
        changes=tuple(change for step in steps for change in step.changes),
        effort=max(step.effort for step in steps) + 0.01 * (len(steps) - 1),
        flags=tuple(word for step in steps for word in step.flags),
        starts_at=max((step.starts_at for step in steps if step.starts_at is not None), default=None),
        nameless=", and ".join(step.nameless or step.text for step in steps) if any(s.nameless for s in steps) else "",
    )
