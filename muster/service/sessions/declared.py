"""A session as a resource that is present or absent: the work behind `library/cluster_session.py`."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from muster.core.model.session import FINAL, Result, Session, SessionState
from muster.core.values.errors import BadInputError, NotFoundError
from muster.service.sessions.commands import SessionCommands
from muster.service.sessions.queries import SessionQueries
from muster.service.sessions.updates import SessionUpdates
from muster.service.sessions.views import SessionView
from muster.service.specs.preparation import SessionPreparation
from muster.service.specs.scope import SessionScope
from muster.settings import Settings, load_settings
from muster.store.store import Store

# Fields that the control node adds, and that therefore are no difference between two specs.
_ADDED = {"ssh_keys"}
# Fields that the site's settings fill in: settings may have changed since, which changes nothing declared.
_COMPLETED_BY_SITE = ("disk", "image", "time_limit")
_OPERATOR = "root"


@dataclass(frozen=True, slots=True)
class DeclaredOutcome:
    """The result of declaring one session, or all of an array.

    `failure` is one line if the wait ended in another state than was declared: with `is_absent` that is none.
    """

    changed: bool
    sessions: tuple[Session, ...]
    diff: dict[str, Any]
    failure: str | None = None
    is_absent: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return what the module returns, but for the diff."""
        shown = [SessionView.of(session).as_json() for session in self.sessions]
        first = {"session": shown[0], "kernels": shown[0]["kernels"]} if shown else {"session": None}
        return {"changed": self.changed, "sessions": shown, **first}


class DeclaredSession:
    """The declaration of a session: makes a state true, and says whether that took a change."""

    def __init__(self, store: Store, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        scope = SessionScope(store, settings)
        self._store = store
        self._preparation = SessionPreparation(scope)
        self._commands = SessionCommands(scope, clock)
        self._updates = SessionUpdates(scope, clock)
        self._queries = SessionQueries(store)

    @classmethod
    @contextmanager
    def opened(cls, config: str) -> Iterator[Self]:
        settings = load_settings(Path(config))
        store = Store(settings.database_url)
        try:
            yield cls(store, settings)
        finally:
            store.close()

    def present(self, name: str, spec: Mapping[str, Any], owner: str, *, check: bool) -> DeclaredOutcome:
        """Queue it, or give it the spec where it waits with another.

        Of an array those that wait get it; what runs or has ended stays as it is. Raises as `SessionCommands.submit`
        and `SessionUpdates.replace`, and BadInputError when it is another user's, or has another spec and waits no
        more.
        """
        existing = self._active(name)
        values = {**spec, "name": name}
        # A begin such as now+1h counts from the time of the submit.
        since = existing[0].submitted_at if existing else time.time()
        resolved = self._preparation.resolved(values, owner, since)
        after = resolved.model_dump(mode="json", exclude=_ADDED)
        if not existing:
            submit = self._commands.would_submit if check else self._commands.submit
            submitted = submit(values, owner)
            return DeclaredOutcome(True, () if check else tuple(submitted), _diff(None, after))
        if existing[0].owner != owner:
            raise _differs(existing[0], f"owner is {existing[0].owner}, declared is {owner}")
        active = [session for session in existing if session.state not in FINAL]
        # All of an array share one spec, or a few.
        changes = {id(session.spec): _changes(session, after, spec) for session in active}
        others = [session for session in active if changes[id(session.spec)]]
        waiting = [session for session in others if session.state is SessionState.PENDING]
        if waiting:
            updated = self._updates.replace(waiting, values, owner, check=check)
            now = {session.id: session for session in updated.sessions}
            sessions = tuple(now.get(session.id, session) for session in existing)
            return DeclaredOutcome(True, existing if check else sessions, _diff(_dump(waiting[0]), after))
        if len(others) == len(active):
            raise _differs(others[0], changes[id(others[0].spec)])
        same = _dump(next(session for session in active if not changes[id(session.spec)]))
        return DeclaredOutcome(False, existing, _diff(same, same))

    def absent(self, name: str, by: str, *, check: bool) -> DeclaredOutcome:
        """End it; root may end anybody's. Raises BadInputError where it is another user's."""
        existing = self._active(name)
        if existing and by not in {existing[0].owner, _OPERATOR}:
            raise BadInputError(
                f"owner: session {name} is {existing[0].owner}'s, not {by}'s; give its owner, or {_OPERATOR}"
            )
        if all(session.state in FINAL or session.ends_for_good for session in existing):
            return DeclaredOutcome(False, existing, _diff(None, None), is_absent=True)
        diff = _diff(_dump(existing[0]), None)
        if not check:
            existing = tuple(self._commands.terminate([session.id for session in existing], by))
        return DeclaredOutcome(True, existing, diff, is_absent=True)

    def awaited(self, name: str) -> DeclaredOutcome:
        """Return the session of that name, or all of the array, also where it has ended. Raises NotFoundError.

        Nothing is queued: one that ended before anybody waited for it would begin again.
        """
        return DeclaredOutcome(False, tuple(self._store.find_all(name)), _diff(None, None))

    def waited(self, outcome: DeclaredOutcome, timeout_s: float) -> DeclaredOutcome:
        """Return the outcome once all have arrived, or with a failure that says what became of one."""
        if not outcome.sessions:
            return outcome
        ids = [session.id for session in outcome.sessions]
        now = list(self._store.get(ids).values())
        failure = None
        try:
            for changed in self._queries.wait_for(ids, lambda s: not outcome.is_absent and _arrived(s), timeout_s):
                now = changed
        except TimeoutError:
            late = next(session for session in now if session.state not in FINAL and not _arrived(session))
            failure = f"session {late.name} is still {late.state} after {timeout_s} s: see `muster why`"
        failed = [session for session in now if _failed(session)]
        if failed and not outcome.is_absent and failure is None:
            failure = f"session {failed[0].name} is {failed[0].state}: {failed[0].reason}"
        return replace(outcome, sessions=tuple(now), failure=failure)

    def _active(self, name: str) -> tuple[Session, ...]:
        """Return the session of that name, or all of the array, unless all of it has ended."""
        try:
            found = self._store.find_all(name)
        except NotFoundError:
            return ()
        named = all(name in {session.name, session.array_name} for session in found)
        ended = all(session.state in FINAL for session in found)
        return tuple(found) if named and not ended else ()


def _dump(session: Session) -> dict[str, Any]:
    return session.spec.model_dump(mode="json", exclude=_ADDED)


def _changes(session: Session, after: Mapping[str, Any], declared: Mapping[str, Any]) -> str:
    """Return how the session's spec differs from the declared one; empty where it does not."""
    before = _dump(session)
    by_site = {key for key in _COMPLETED_BY_SITE if declared.get(key) in {None, ""} and after[key] is not None}
    differing = sorted(key for key in after if before[key] != after[key] and key not in by_site)
    return "; ".join(f"{key} is {before[key]}, declared is {after[key]}" for key in differing)


def _differs(session: Session, changes: str) -> BadInputError:
    return BadInputError(
        f"session {session.name} is {session.state} and differs: {changes}; end it first, or declare it as it is"
    )


def _arrived(session: Session) -> bool:
    return session.state is SessionState.RUNNING and not session.spec.is_batch


def _failed(session: Session) -> bool:
    """Return whether a session that was to be present is not: one that runs no command is there while it runs."""
    if session.spec.is_batch:
        return session.result is Result.FAILURE or session.state in {SessionState.ERROR, SessionState.CANCELLED}
    return session.state in FINAL


def _diff(before: object, after: object) -> dict[str, Any]:
    return {"before": before or {}, "after": after or {}}
