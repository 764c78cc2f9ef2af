"""Sessions as a user may see them: their waits name no session of others."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from muster.core.model.session import Session, SessionState
from muster.core.model.wait import Wait
from muster.core.whatif.redaction import redacted
from muster.store.store import Store

# Whether a user may see a session.
Sees = Callable[[Session], bool]


def visible_sessions(store: Store, sessions: Sequence[Session], sees: Sees) -> list[Session]:
    """Return the same sessions, with waits that name no session which the user may not see."""
    waits = {session.id: session.wait for session in sessions if session.state is SessionState.PENDING}
    waited_for = {key for wait in waits.values() if wait for key in wait.waits_for}
    others = store.get(sorted(waited_for)) if waited_for else {}
    hidden = {key for key, other in others.items() if not sees(other)}
    return [_redacted(session, waits.get(session.id), hidden) for session in sessions]


def _redacted(session: Session, wait: Wait | None, hidden: set[str]) -> Session:
    if wait is None or not hidden.intersection(wait.waits_for):
        return session
    return replace(session, wait=redacted(wait, hidden))
