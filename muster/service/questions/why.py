"""Why a session is as it is, as somebody is told who may see only some of the others that it waits for."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from muster.core.model.plan import Wait
from muster.core.model.session import Session, SessionState
from muster.core.whatif.discretion import discreet
from muster.core.whatif.explain import stored_wait
from muster.core.whatif.hypothesis import Later, Suggestion
from muster.service.backend import Why
from muster.service.questions.what_if import WhatIf
from muster.service.sessions.sessions import Sessions


def seen_why(service: Sessions, session: Session, sees: Callable[[Session], bool], *, what_if: bool) -> Why:
    """Raises NotPossibleInStateError with `what_if` for a session that does not wait."""
    (session,) = seen_sessions(service, [session], sees)
    wait = stored_wait(session.wait) if session.state is SessionState.PENDING else None
    questions = WhatIf(service)
    position = questions.position(session) if wait else 0
    others = service.store.get(wait.waits_for) if wait else {}
    names = {key: f"{other.name} ({other.state})" for key, other in others.items()}
    suggestions = questions.what_would_help(session) if what_if else None
    seen = None if suggestions is None else seen_suggestions(service, suggestions, sees)
    return Why(session, wait, position, names, seen)


def seen_sessions(service: Sessions, sessions: Sequence[Session], sees: Callable[[Session], bool]) -> list[Session]:
    """The same sessions; what they wait for is told without the names of those that are not seen."""
    waits = {session.id: stored_wait(session.wait) for session in sessions if session.state is SessionState.PENDING}
    waited_for = {key for wait in waits.values() if wait for key in wait.waits_for}
    others = service.store.get(sorted(waited_for)) if waited_for else {}
    hidden = {key for key, other in others.items() if not sees(other)}
    return [_discreet(session, waits.get(session.id), hidden) for session in sessions]


def _discreet(session: Session, wait: Wait | None, hidden: set[str]) -> Session:
    if wait is None or not hidden.intersection(wait.waits_for):
        return session
    told = discreet(wait, hidden)
    changed = {"message": told.message, "waits_for": list(told.waits_for)}
    return replace(session, wait={**session.wait, **changed})


def seen_suggestions(
    service: Sessions, suggestions: Collection[Suggestion], sees: Callable[[Session], bool]
) -> tuple[Suggestion, ...]:
    ending = {key for one in suggestions for change in one.changes if isinstance(change, Later) for key in change.ended}
    hidden = {key for key, other in service.store.get(sorted(ending)).items() if not sees(other)}
    return tuple(_without_names(one) if _ends_one_of(one, hidden) else one for one in suggestions)


def _ends_one_of(suggestion: Suggestion, hidden: set[str]) -> bool:
    return any(isinstance(change, Later) and hidden.intersection(change.ended) for change in suggestion.changes)


def _without_names(suggestion: Suggestion) -> Suggestion:
    at_its_time = suggestion.starts_at is not None
    text = "wait: other users' sessions end by their time limits" if at_its_time else "another user's session ended"
    return replace(suggestion, text=text)
