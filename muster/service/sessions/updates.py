"""Updates of sessions that wait: another spec, at the same place in the queue."""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.core.lifecycle.update import updated
from muster.core.model.session import Session, SessionState
from muster.core.scheduling.limits import pending_refusal
from muster.core.spec.differences import differences
from muster.core.spec.merging import changed
from muster.core.spec.session_spec import SessionSpec
from muster.core.values.errors import BadInputError, NotPossibleInStateError
from muster.service.scheduler.overrides import limits_in_force
from muster.service.specs.new_sessions import check_amounts
from muster.service.specs.preparation import SessionPreparation
from muster.service.specs.scope import SessionScope
from muster.service.specs.spec_again import as_submitted
from muster.service.wake import wake
from muster.store.sessions.pending import PendingCheck
from muster.store.sessions.updating import Update

_TRIES = 20


@dataclass(frozen=True, slots=True)
class Updated:
    """Sessions after an update, and what it changed, a phrase for each field."""

    sessions: Sequence[Session]
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Wish:
    """What sessions shall ask for: by session, the values of a spec and the time from which its times count."""

    values_and_time: Callable[[Session], tuple[Mapping[str, Any], float]]
    by: str
    whole_array: bool
    is_bound: bool


class SessionUpdates:
    """The updates of the pending sessions of a scope."""

    def __init__(self, scope: SessionScope, clock: Callable[[], float] = time.time) -> None:
        self._store = scope.store
        self._settings = scope.settings
        self._visible_owner = scope.visible_owner
        self._clock = clock
        self._preparation = SessionPreparation(scope)

    def update(self, reference: str, changes: Mapping[str, Any], by: str, *, is_bound: bool = False) -> Updated:
        """Change what a pending session asks for, or all of an array that are: all of them or none.

        `changes` are fields of the spec with their new values, a merge patch. One that a pass places meanwhile is left
        out, as if it had been placed before. With `is_bound`, a session gets no higher priority than it has, but for
        what the site lets its owner ask for.
        Raises as `SessionPreparation.updated`, NotFoundError, AmbiguousNameError, NotPossibleInStateError, and
        BadInputError where a limit refuses it.
        """
        # The same at each try: a begin such as now+1h counts from here.
        now = self._clock()
        self._check_adopted()
        same = self._store.find_all(reference, self._visible_owner)
        # One session of an array does not have its name.
        whole_array = len(same) > 1 or reference == same[0].array_name

        def wished(session: Session) -> tuple[Mapping[str, Any], float]:
            return changed(as_submitted(self._settings, session.spec), changes), now

        return self._updated(same, _Wish(wished, by, whole_array, is_bound), now)

    def replace(
        self, sessions: Sequence[Session], values: Mapping[str, Any], by: str, *, check: bool = False
    ) -> Updated:
        """Give pending sessions, one or all of an array that are, the spec of these values: all of them or none.

        Its times count from their submit. With `check` nothing is changed, and the sessions are returned as they would
        be. Raises as `update` with `is_bound`.
        """
        self._check_adopted()
        wish = _Wish(lambda session: (values, session.submitted_at), by, whole_array=True, is_bound=True)
        if not check:
            return self._updated(list(sessions), wish, self._clock())
        updates = self._updates(sessions, wish)
        self._check(updates)
        return Updated([update.after for update in updates], _phrases(updates))

    def _check_adopted(self) -> None:
        """Raises NotPossibleInStateError after a restore until agents were asked what runs."""
        if self._store.queue.adoption() is not None:
            raise NotPossibleInStateError(
                "the database was put back, and agents were not asked yet what runs; try again once the queue is worked"
            )

    def _updated(self, same: Sequence[Session], wish: _Wish, now: float) -> Updated:
        """Update those of the sessions that wait, and return them as they are then."""
        ids = [session.id for session in same]
        phrases: tuple[str, ...] = ()
        done: set[str] = set()
        for _ in range(_TRIES):
            pending = [session for session in same if session.state is SessionState.PENDING]
            if not pending and not done:
                raise _not_pending(same)
            updates = self._updates(pending, wish)
            if not updates:
                wake(self._settings, self._store)
                done.update(session.id for session in pending)
                return Updated([session for session in same if session.id in done], phrases)
            phrases = _phrases(updates)
            done.update(update.before.id for update in self._store.update(updates, now, self._check(updates)))
            same = list(self._store.get(ids).values())
        raise NotPossibleInStateError("the sessions keep changing; try again")

    def _updates(self, pending: Iterable[Session], wish: _Wish) -> list[Update]:
        """Return the updates of those sessions that do not ask for that already."""
        alike: dict[tuple[int, bool], list[Session]] = {}
        for session in pending:
            alike.setdefault((id(session.spec), session.requeues > 0), []).append(session)
        found: list[Update] = []
        for same in alike.values():
            values, since = wish.values_and_time(same[0])
            spec = self._preparation.updated(
                same[0], values, since, whole_array=wish.whole_array, is_bound=wish.is_bound
            )
            found += self._of_one_spec(same, spec, wish.by)
        return found

    def _of_one_spec(self, same: Sequence[Session], spec: SessionSpec, by: str) -> list[Update]:
        phrases = differences(same[0].spec, spec)
        if not phrases:
            return []
        check_amounts(spec, len(same), "array")
        reason = f"updated by {by}: {'; '.join(phrases)}"
        after = self._preparation.with_folders([updated(session, spec, _new_id) for session in same])
        return [Update(session, new, reason) for session, new in zip(same, after, strict=True)]

    def _check(self, updates: Sequence[Update]) -> PendingCheck:
        """Return a check of the limits that has passed. Raises BadInputError."""
        limits = limits_in_force(self._settings, self._store)
        before = {update.before.id: update.before for update in updates}
        after = [update.after for update in updates]

        def check(pending: Iterable[Session]) -> None:
            others = [session for session in pending if session.id not in before]
            refusal = pending_refusal(limits, others, after, before.values())
            if refusal is not None:
                raise BadInputError(refusal)

        pending = self._store.pending()
        check(pending.by_id.values())
        return PendingCheck(pending, check)


def _phrases(updates: Sequence[Update]) -> tuple[str, ...]:
    return differences(updates[0].before.spec, updates[0].after.spec) if updates else ()


def _new_id() -> str:
    return str(uuid.uuid4())


def _not_pending(same: Sequence[Session]) -> NotPossibleInStateError:
    session = same[0]
    remedy = "; use `muster extend`" if session.state is SessionState.RUNNING else ""
    return NotPossibleInStateError(
        f"session {session.name} is {session.state}; only a PENDING session can be updated{remedy}"
    )
