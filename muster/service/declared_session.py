"""A session as a resource that is to be present or absent: the work behind `library/cluster_session.py`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from muster.core.errors import BadInputError, NotFoundError
from muster.core.session import FINAL, Result, Session, SessionState
from muster.service.sessions import Sessions
from muster.service.views import session_json
from muster.settings import load_settings
from muster.store.store import Store

# What the control node adds, and what therefore is no difference between two specs.
_ADDED = {"ssh_keys"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done. `failure` is one line when waiting ended in something else than was asked for."""

    changed: bool
    session: dict[str, Any] | None
    diff: dict[str, Any]
    failure: str | None = None


class DeclaredSession:
    """Makes what is asked for true, and says whether that took a change."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    @classmethod
    @contextmanager
    def opened(cls, config: str) -> Iterator[Self]:
        settings = load_settings(Path(config))
        store = Store(settings.database_url)
        try:
            yield cls(Sessions(store, settings))
        finally:
            store.close()

    def present(self, name: str, spec: Mapping[str, Any], owner: str, *, check: bool) -> Outcome:
        """Raises SpecError, and BadInputError when a session of that name has another spec."""
        wanted = self._sessions.resolved({**spec, "name": name})
        existing = self._active(name)
        after = wanted.model_dump(mode="json", exclude=_ADDED)
        if existing is not None:
            before = existing.spec.model_dump(mode="json", exclude=_ADDED)
            differing = sorted(key for key in after if before[key] != after[key])
            if differing:
                changes = "; ".join(f"{key} is {before[key]}, asked for is {after[key]}" for key in differing)
                raise BadInputError(
                    f"session {name} has not ended and differs: {changes}; end it first, or ask for what it is"
                )
            return Outcome(False, session_json(existing), _diff(before, after))
        if check:
            return Outcome(True, None, _diff(None, after))
        submitted = self._sessions.submit({**spec, "name": name}, owner)[0]
        return Outcome(True, session_json(submitted), _diff(None, after))

    def absent(self, name: str, by: str, *, check: bool) -> Outcome:
        existing = self._active(name)
        if existing is None:
            return Outcome(False, None, _diff(None, None))
        if existing.state is SessionState.TERMINATING:
            return Outcome(False, session_json(existing), _diff(None, None))
        diff = _diff(existing.spec.model_dump(mode="json", exclude=_ADDED), None)
        if not check:
            self._sessions.terminate([existing.id], by)
            existing = self._sessions.store.get([existing.id])[existing.id]
        return Outcome(True, session_json(existing), diff)

    def waited(self, outcome: Outcome, timeout_s: float) -> Outcome:
        """The outcome when the session has got where it was to go, or with a failure that says what became of it."""
        if outcome.session is None:
            return outcome
        session = self._sessions.store.get([outcome.session["id"]])[outcome.session["id"]]
        ending = session.state in FINAL | {SessionState.TERMINATING}
        try:
            for (now,) in self._sessions.wait_for([session], lambda s: not ending and _arrived(s), timeout_s):
                session = now
        except TimeoutError:
            late = f"session {session.name} is still {session.state} after {timeout_s} s: see `muster why`"
            return replace(outcome, session=session_json(session), failure=late)
        failure = None
        if not ending and (session.state is SessionState.ERROR or session.result is Result.FAILURE):
            failure = f"session {session.name} is {session.state}: {session.reason}"
        return replace(outcome, session=session_json(session), failure=failure)

    def _active(self, name: str) -> Session | None:
        try:
            found = self._sessions.store.find(name)
        except NotFoundError:
            return None
        return found if found.name == name and found.state not in FINAL else None


def _arrived(session: Session) -> bool:
    return session.state is SessionState.RUNNING and not session.spec.is_batch


def _diff(before: object, after: object) -> dict[str, Any]:
    return {"before": before or {}, "after": after or {}}
