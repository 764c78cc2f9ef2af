"""Waits without the names of sessions that a user may not see."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from muster.core.model.wait import Wait, WaitCode

_NAMELESS: Mapping[WaitCode, str] = {
    WaitCode.BEHIND: "another user's session is ahead of it in the queue",
    WaitCode.PREEMPTING: "starts when other users' sessions have made room",
    WaitCode.DEPENDENCY: "starts after other sessions",
    WaitCode.NEVER_RUNS: "it starts after another session succeeds, which did not; update it without that",
}


def redacted(wait: Wait, hidden: Collection[str]) -> Wait:
    """Return the wait without names and ids of the `hidden` sessions (ids), which its message may hold."""
    if not any(session_id in hidden for session_id in wait.waits_for):
        return wait
    visible = tuple(session_id for session_id in wait.waits_for if session_id not in hidden)
    message = _NAMELESS.get(wait.code, "starts when other users' sessions let it")
    return replace(wait, message=message, waits_for=visible)
