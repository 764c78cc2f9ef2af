"""The signal that a session's command gets before we end the session (`--signal USR1@120`).

Each end waits for a signal of its own and its time. What sends it is the session's number of signals, which manifests
carry.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from muster.core.model.session import Session, SessionState

# Until then a signal that has not come yet is on its way as ever.
_LATE_AFTER_S = 5.0


def raised(session: Session, now: float) -> Mapping[str, Any]:
    """Return the changes that have the command sent one more signal."""
    return {"signals": session.signals + 1, "signalled_at": now}


def needs_signal(session: Session) -> bool:
    """Return whether the session runs and asks for a signal before its end."""
    return session.state is SessionState.RUNNING and session.spec.signal_s > 0


def is_late(session: Session, now: float) -> bool:
    """Return whether the session's command should have got the last signal by now.

    It was decided on some time ago, or the session is about to leave by an earlier one.
    """
    if not needs_signal(session) or session.signalled_at is None:
        return False
    leaves = session.leaves_at is not None and now >= session.leaves_at
    return leaves or now - session.signalled_at >= min(_LATE_AFTER_S, session.spec.signal_s)


def with_time_from(session: Session, at: float) -> Session:
    """Return the session with the time that its last signal gives it beginning then."""
    leaves_at = None if session.leaves_at is None else at + session.spec.signal_s
    return replace(session, signalled_at=at, leaves_at=leaves_at)


def limit_at(session: Session) -> float | None:
    """Return when the time limit ends the session: later than it says only where the signal came late."""
    if session.time_limit is None or session.started_at is None:
        return None
    at = session.started_at + session.time_limit
    if not needs_signal(session) or not _has_signal_since(session, at - _limit_lead_s(session)):
        return at
    return max(at, (session.signalled_at or 0.0) + _limit_lead_s(session))


def limit_is_reached(session: Session, now: float) -> bool:
    """Return whether the time limit ends the session now: first comes the signal, then its time."""
    at = limit_at(session)
    return at is not None and now >= at and not limit_signal_is_due(session, now)


def limit_signal_is_due(session: Session, now: float) -> bool:
    """Return whether the signal before the end by the time limit is to be sent now."""
    if not needs_signal(session):
        return False
    due = limit_signal_at(session)
    return due is not None and now >= due and not _has_signal_since(session, due)


def limit_signal_at(session: Session) -> float | None:
    """Return when the signal before the end by the time limit is due, sent or not; None without either."""
    if not needs_signal(session) or session.time_limit is None or session.started_at is None:
        return None
    return session.started_at + session.time_limit - _limit_lead_s(session)


def idle_signal_is_due(session: Session, ends_at: float, now: float) -> bool:
    """Return whether the signal before an end for being idle at `ends_at` is to be sent now, after the warning."""
    if not needs_signal(session) or session.warned_at is None or now < ends_at - session.spec.signal_s:
        return False
    return not _has_signal_since(session, session.warned_at) and not _is_being_heeded(session, now)


def idle_end_waits(session: Session, now: float) -> bool:
    """Return whether the end of an idle session that was warned waits for its signal, or for the time after that."""
    if not needs_signal(session) or session.warned_at is None:
        return False
    if not _has_signal_since(session, session.warned_at):
        return True
    return now < (session.signalled_at or 0.0) + session.spec.signal_s


def leaving(session: Session, now: float) -> Mapping[str, Any]:
    """Return the changes by which a session begins to leave its place; none where it needs no signal, or has them.

    It leaves the time of its signal later. After a clock was set back it begins anew.
    """
    leaves_at = now + session.spec.signal_s
    if not needs_signal(session) or (session.leaves_at is not None and session.leaves_at <= leaves_at):
        return {}
    if _is_being_heeded(session, now):
        return {"leaves_at": (session.signalled_at or 0.0) + session.spec.signal_s}
    return {**raised(session, now), "leaves_at": leaves_at}


def may_leave(session: Session, now: float) -> bool:
    """Return whether a session that `leaving` asks nothing more of has had the time that its signal gives it."""
    return not needs_signal(session) or (session.leaves_at is not None and now >= session.leaves_at)


def _limit_lead_s(session: Session) -> int:
    """Return how long before the time limit the signal is sent: a site's limit may be shorter than the wish."""
    return min(session.spec.signal_s, session.time_limit or 0)


def _is_being_heeded(session: Session, now: float) -> bool:
    """Return whether the time of the last signal still runs: another one would put off the end that it was for."""
    return session.signalled_at is not None and 0 <= now - session.signalled_at < session.spec.signal_s


def _has_signal_since(session: Session, at: float) -> bool:
    return session.signalled_at is not None and session.signalled_at >= at
