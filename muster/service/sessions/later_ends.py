"""Ends of running sessions that their users put off: which time the site and its reservations leave them."""

from collections.abc import Iterable

from muster.core.lifecycle.end_signals import limit_at
from muster.core.model.reservation import Reservation
from muster.core.model.session import Session
from muster.core.values.errors import BadInputError, NotPossibleInStateError
from muster.core.values.units import exact_duration, timestamp
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


def check_reservations(
    session: Session, how: str, ends_at: float, reservations: Iterable[Reservation], now: float
) -> None:
    """Check that a session which may run until then reaches no further into a reservation than it does already.

    `how` says what brings it there, as in `TIME: with 2h more`. Raises NotPossibleInStateError.
    """
    end = limit_at(session) or now
    for reservation in reservations:
        is_met = max(end, now) < reservation.ends_at and ends_at > reservation.begins_at
        covered = any(reservation.covers(agent, session.spec.resource_group) for agent in session.agents)
        if is_met and covered and not reservation.admits(session.owner, session.spec.project):
            raise NotPossibleInStateError(
                f"{how}, session {session.name} may run until {timestamp(ends_at)}, and its agents are reserved from"
                f" {timestamp(reservation.begins_at)} on ({reservation.name}); ask an administrator"
            )


def end_with_more(session: Session, seconds: int, now: float) -> float:
    """Return when it ends at the latest with so many seconds more. It has a time limit."""
    return (limit_at(session) or now) + seconds


def end_after_restart(session: Session, now: float) -> float | None:
    """Return when it ends at the latest where it is restarted now; None where it has no time limit."""
    return None if session.time_limit is None else now + session.time_limit
