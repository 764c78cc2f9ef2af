"""Why a session is as it is, and what would let it start, as a user may see it."""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from muster.core.model.heartbeat import Unworked
from muster.core.model.session import Session, SessionState
from muster.core.model.wait import Wait
from muster.core.whatif.hypothesis import Change, Later, Moved, Suggestion
from muster.core.whatif.left_out import left_out
from muster.service.questions.decided_queue import DecidedQueue
from muster.service.questions.what_if import WhatIf
from muster.service.queue.heartbeat import unworked_queue
from muster.service.sessions.visibility import Sees, visible_sessions
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class Why:
    """The reason for a session's state. `wait` is None unless it waits, `suggestions` unless they were requested.

    `left_out` are lines on the agents that the wait counts as left out. `unworked` is set if nobody works the queue.
    """

    session: Session
    wait: Wait | None
    position: int
    names: Mapping[str, str]
    suggestions: Sequence[Suggestion] | None
    left_out: Sequence[str] = ()
    unworked: Unworked | None = None


def visible_why(
    store: Store, settings: Settings, decided: DecidedQueue, session: Session, sees: Sees, *, what_if: bool
) -> Why:
    """Return why a session waits, with suggestions where `what_if` asks for them.

    Raises NotPossibleInStateError with `what_if` for a session that does not wait.
    """
    (session,) = visible_sessions(store, [session], sees)
    wait = session.wait if session.state is SessionState.PENDING else None
    position = decided.position(session) if wait else 0
    others = store.get(wait.waits_for) if wait else {}
    names = {key: f"{other.name} ({other.state})" for key, other in others.items()}
    suggestions = WhatIf(store, settings).what_would_help(session) if what_if else None
    visible = None if suggestions is None else visible_suggestions(store, suggestions, sees)
    left = left_out(session, wait, store.snapshot(time.time())) if wait else ()
    return Why(session, wait, position, names, visible, left, unworked_queue(store, settings))


def visible_suggestions(store: Store, suggestions: Collection[Suggestion], sees: Sees) -> tuple[Suggestion, ...]:
    """Return the same suggestions, with texts that name no session which the user may not see."""
    others = {key for one in suggestions for change in one.changes for key in _others(change)}
    hidden = {key for key, other in store.get(sorted(others)).items() if not sees(other)}
    return tuple(replace(one, text=one.nameless) if _is_about(one, hidden) else one for one in suggestions)


def _others(change: Change) -> tuple[str, ...]:
    """Return the ids of the sessions that the change ends or moves."""
    match change:
        case Later(ended=ids) | Moved(session_ids=ids):
            return ids
    return ()


def _is_about(suggestion: Suggestion, hidden: set[str]) -> bool:
    return any(hidden.intersection(_others(change)) for change in suggestion.changes)
