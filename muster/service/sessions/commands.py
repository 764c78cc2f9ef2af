"""Commands on sessions: submit, end, hold, release, restart, rename."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from muster.core.lifecycle import transitions
from muster.core.lifecycle.transitions import Event
from muster.core.model.session import FINAL, LaunchStep, Session, SessionState
from muster.core.scheduling.limits import pending_refusal
from muster.core.spec.session_spec import NAME_PATTERN
from muster.core.values.errors import BadInputError, NotPossibleInStateError
from muster.core.values.units import exact_duration
from muster.service.identity.owner_uids import check_uid
from muster.service.scheduler.overrides import limits_in_force
from muster.service.sessions.later_ends import check_extension, check_reservations, end_after_restart, end_with_more
from muster.service.specs.preparation import SessionPreparation
from muster.service.specs.scope import SessionScope
from muster.service.wake import wake
from muster.store.sessions.pending import PendingCheck
from muster.store.sessions.submissions import Submission

_TRIES = 20


class SessionCommands:
    """The commands that change the sessions of a scope, and wake the loop that works the queue."""

    def __init__(self, scope: SessionScope, clock: Callable[[], float] = time.time) -> None:
        self._store = scope.store
        self._settings = scope.settings
        self._visible_owner = scope.visible_owner
        self._clock = clock
        self._preparation = SessionPreparation(scope)

    def submit(
        self, spec: Mapping[str, Any], owner: str, count: int = 1, submission: Submission | None = None
    ) -> list[Session]:
        """Queue `count` sessions of one spec, or one for each index of its array: all of them or none.

        Raises as `SessionPreparation.sessions`, NameTakenError, SubmittedBeforeError where the submission was done
        already, and BadInputError where a limit refuses them.
        """
        new = self._preparation.sessions(spec, owner, count, self._clock(), asks_agents=True)
        try:
            check = self._check(new)
        except BadInputError:
            if submission is not None:
                # What waits may be what the same submit has queued, while this repetition of it was prepared.
                self._store.submissions.check(submission)
            raise
        check_uid(self._settings.launch_policy(), self._store, owner)
        # Others may submit at the same time: one of us finds the other's sessions in the transaction that adds ours.
        self._store.add(new, submission, check)
        wake(self._settings, self._store)
        return new

    def would_submit(self, spec: Mapping[str, Any], owner: str) -> list[Session]:
        """Return the sessions that `submit` would queue now.

        Raises as it does, but for names that are taken, and owners for whom no uid is left.
        """
        new = self._preparation.sessions(spec, owner, 1, self._clock(), asks_agents=True)
        self._check(new)
        return new

    def terminate(self, references: Iterable[str], by: str, *, only_pending: bool = False) -> list[Session]:
        """End sessions, or cancel them while they are pending; of an array all, or all that are pending.

        A session that has ended, or is about to, is left as it is. All references are looked up before the first is
        ended. Raises NotFoundError, AmbiguousNameError and, with `only_pending`, NotPossibleInStateError.
        """

        def end(session: Session, now: float) -> Event | None:
            if session.state in FINAL or session.ends_for_good:
                return None
            if only_pending and session.state is not SessionState.PENDING:
                return None
            return transitions.end_by_user(session, by, now)

        found = self._found(references)
        return self._changed_pending(found, "cancelled", end, FINAL) if only_pending else self._changed(found, end)

    def end_for_drain(self, references: Iterable[str], by: str) -> list[Session]:
        """End sessions of drained agents; one that asks for a signal gets that, and its time, first.

        Raises as `terminate`.
        """

        def end(session: Session, now: float) -> Event | None:
            if session.state in FINAL or session.ends_for_good:
                return None
            return transitions.end_by_drain(session, by, now)

        return self._changed(self._found(references), end)

    def hold(self, references: Iterable[str], by: str) -> list[Session]:
        """Keep pending sessions from starting; of an array those that are pending. Raises as `terminate`."""

        def hold(session: Session, now: float) -> Event | None:
            if session.state is not SessionState.PENDING or session.held_by is not None:
                return None
            return transitions.hold(session, by, now)

        return self._changed_pending(self._found(references), "held", hold, {SessionState.PENDING})

    def release(self, references: Iterable[str], by: str) -> list[Session]:
        """Let held sessions wait for their turn again; any other is left as it is. Raises as `terminate`."""

        def release(session: Session, now: float) -> Event | None:
            if session.state is not SessionState.PENDING or session.held_by is None:
                return None
            return transitions.release(session, by, now)

        return self._changed([_pending(same, "released") for same in self._found(references)], release)

    def restart(self, references: Iterable[str], by: str, *, is_bound: bool = False) -> list[Session]:
        """Stop running sessions and launch them again where they are; of an array those that run.

        One that is being restarted already is left as it is. With `is_bound`, its time limit, which counts anew, must
        not bring it into a reservation. Raises as `terminate`, and as `check_reservations`.
        """
        reservations = self._store.reservations.all() if is_bound else ()

        def restart(session: Session, now: float) -> Event | None:
            if session.step is LaunchStep.RESTARTING or session.state is not SessionState.RUNNING:
                return None
            if (ends_at := end_after_restart(session, now)) is not None:
                check_reservations(session, "restarted now", ends_at, reservations, now)
            return transitions.restart(session, by, now)

        found = [_running(same, "restarted", or_restarting=True) for same in self._found(references)]
        return self._changed(found, restart)

    def extend(self, references: Iterable[str], seconds: int, by: str, *, is_bound: bool = False) -> list[Session]:
        """Add time to the limits of running sessions, of an array of those that run; return those that were extended.

        With `is_bound`, what the site lets users add is the most, and no reservation may be in the way. Raises as
        `terminate`, as `check_extension` and as `check_reservations`.
        """
        reservations = self._store.reservations.all() if is_bound else ()
        found = [_running(same, "extended") for same in self._found(references)]
        ids = list(dict.fromkeys(session.id for same in found for session in same))
        left = set(ids)

        def extend(session: Session, now: float) -> Event | None:
            if session.id not in left or session.state is not SessionState.RUNNING:
                return None
            check_extension(session, seconds, self._settings, is_bound=is_bound)
            how = f"TIME: with {exact_duration(seconds)} more"
            check_reservations(session, how, end_with_more(session, seconds, now), reservations, now)
            return transitions.extend(session, seconds, by, now)

        now = {s.id: s for s in self._changed(found, extend, lambda event: left.discard(event.session_id))}
        for same in found:
            if left.issuperset(session.id for session in same):
                # They have ended, or were restarted, since they were read.
                _running([now[session.id] for session in same], "extended")
        return [session for session in now.values() if session.id not in left]

    def rename(self, reference: str, name: str, by: str) -> Session:
        """Rename a session and return it. Raises BadInputError, NameTakenError and NotPossibleInStateError."""
        if not NAME_PATTERN.fullmatch(name):
            raise BadInputError(
                f"NEW: {name!r} is not a session name; use letters, digits, dots, dashes and underscores, 63 at most"
            )
        # Of an array's name, any: none of them takes another.
        session = self._store.find_all(reference, self._visible_owner)[0]
        if session.array_id is not None:
            raise NotPossibleInStateError(
                f"session {session.name} is one of an array, which its name tells; submit it anew under another name"
            )
        self._store.rename(session, name, by, self._clock())
        wake(self._settings, self._store)
        return self._store.get([session.id])[session.id]

    def _check(self, new: Sequence[Session]) -> PendingCheck:
        """Return a check of the limits that has passed. Raises BadInputError."""
        limits = limits_in_force(self._settings, self._store)

        def check(pending: Iterable[Session]) -> None:
            refusal = pending_refusal(limits, pending, new)
            if refusal is not None:
                raise BadInputError(refusal)

        pending = self._store.pending()
        check(pending.by_id.values())
        return PendingCheck(pending, check)

    def _found(self, references: Iterable[str]) -> list[list[Session]]:
        """Return for each reference its session, or those of its array."""
        return [self._store.find_all(reference, self._visible_owner) for reference in references]

    def _changed_pending(
        self,
        found: Iterable[Sequence[Session]],
        what: str,
        change: Callable[[Session, float], Event | None],
        states: Collection[SessionState],
    ) -> list[Session]:
        """Apply `change` to the pending ones, which brings them into one of the states; return them as they are then.

        One that a pass places meanwhile is left out, as if it had been placed before. Raises NotPossibleInStateError,
        also where none of a reference's sessions is left.
        """
        or_ended = not FINAL.isdisjoint(states)
        chosen = [_pending(same, what, or_ended=or_ended) for same in found]
        now = {session.id: session for session in self._changed(chosen, change)}
        left: dict[str, Session] = {}
        for same in ([now[session.id] for session in same] for same in chosen):
            changed = [session for session in same if session.state in states] or _pending(same, what)
            left |= {session.id: session for session in changed}
        return list(left.values())

    def _changed(
        self,
        found: Iterable[Sequence[Session]],
        change: Callable[[Session, float], Event | None],
        changed: Callable[[Event], None] = lambda _event: None,
    ) -> list[Session]:
        """Apply to each session the event that `change` makes of it, and return them as they are then.

        `changed` gets each event that was applied. `change` returns None for a session that is as it shall be.
        """
        ids = list(dict.fromkeys(session.id for same in found for session in same))
        # A pass may change a session between our read and our change. Then we read it again.
        for _ in range(_TRIES):
            by_id = self._store.get(ids)
            now = self._clock()
            events = [event for key in ids if (event := change(by_id[key], now))]
            if not events:
                wake(self._settings, self._store)
                return [by_id[key] for key in ids]
            for event in self._store.apply(events):
                changed(event)
        raise NotPossibleInStateError("the sessions keep changing; try again")


def _pending(same: Sequence[Session], what: str, *, or_ended: bool = False) -> Sequence[Session]:
    """Return the pending ones; with `or_ended` all, if all have ended. Raises NotPossibleInStateError."""
    pending = [session for session in same if session.state is SessionState.PENDING]
    others = [session for session in same if session.state not in FINAL]
    if pending:
        return pending
    if or_ended and not others:
        return same
    session = (others or same)[0]
    remedy = f"; use `muster terminate {session.name}`" if others else ""
    raise NotPossibleInStateError(
        f"session {session.name} is {session.state}; only a PENDING session can be {what}{remedy}"
    )


def _running(same: Sequence[Session], what: str, *, or_restarting: bool = False) -> Sequence[Session]:
    """Return those that run, or are being restarted if that counts. Raises NotPossibleInStateError for none."""
    running = [
        session
        for session in same
        if session.state is SessionState.RUNNING or (or_restarting and session.step is LaunchStep.RESTARTING)
    ]
    if not running:
        raise NotPossibleInStateError(
            f"session {same[0].name} is {same[0].state}; only a RUNNING session can be {what}"
        )
    return running
