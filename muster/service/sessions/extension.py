"""How much time users may add to the limit of a running session."""

from muster.core.model.session import Session
from muster.core.values.errors import BadInputError, NotPossibleInStateError
from muster.core.values.units import exact_duration
from muster.settings import Settings

MOST_S = 10 * 365 * 86400


def check_extension(session: Session, seconds: int, settings: Settings, *, is_bound: bool) -> None:
    """Check that a session can be given so much more time, and with `is_bound` that its user may do so.

    Raises BadInputError, and NotPossibleInStateError for a session that has no time limit.
    """
    if session.time_limit is None:
        raise NotPossibleInStateError(f"session {session.name} has no time limit; it needs no more time")
    if not 0 < seconds <= MOST_S - session.extended_s:
        raise BadInputError("TIME: it is no time that a session can be extended by; write 30m or 2h, for example")
    if not is_bound:
        return
    most = settings.extend_most
    if session.extended_s + seconds > most:
        before = f", and has had {exact_duration(session.extended_s)}" if session.extended_s else ""
        allowed = f"users may extend a session by {exact_duration(most)} in all" if most else "users may extend none"
        raise BadInputError(
            f"TIME: {exact_duration(seconds)} is too much for session {session.name}: {allowed}{before};"
            " ask an administrator"
        )
    longest = settings.idle.of(session.spec.resource_group).max_lifetime
    if longest is not None and session.time_limit + seconds > longest:
        raise BadInputError(
            f"TIME: with {exact_duration(seconds)} more, session {session.name} may run longer than any session of"
            f" this site lives, {exact_duration(longest)}; ask an administrator"
        )
