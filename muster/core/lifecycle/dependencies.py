"""Pending sessions that were to start after another one's success, which can no longer come."""

from collections.abc import Iterator
from dataclasses import replace

from muster.core.lifecycle.transitions import Event, transition
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot


def cancel_impossible(snapshot: Snapshot) -> list[Event]:
    """Return PENDING → CANCELLED for each session whose `after_ok` names one that has ended without success.

    What depends on a cancelled session follows in turn: it has not succeeded either.
    """
    # Few sessions fail, and a whole queue goes through this in each decision.
    failed = {key: session for key, session in snapshot.ended.items() if not session.succeeded}
    return list(_cancelled(snapshot, failed)) if failed else []


def _cancelled(snapshot: Snapshot, failed: dict[str, Session]) -> Iterator[Event]:
    # The sessions of an array have the same dependencies, of which there may be thousands.
    first_failed: dict[tuple[str, ...], Session | None] = {}
    for session in snapshot.pending:
        after_ok = session.spec.after_ok
        if not after_ok:
            continue
        if after_ok not in first_failed:
            first_failed[after_ok] = next((failed[key] for key in after_ok if key in failed), None)
        before = first_failed[after_ok]
        if before is not None:
            how = "was cancelled" if before.state is SessionState.CANCELLED else "failed"
            # Others' sessions have names that are not for every owner.
            name = before.name if before.owner == session.owner else "another session"
            reason = f"it was to start after {name} succeeds, which {how}"
            event = transition(session, SessionState.CANCELLED, reason, snapshot.now, wait=None)
            # A user may have given it another dependency since it was read.
            yield replace(event, expects={"updates": session.updates})
