"""Waits without the names of sessions that a user may not see."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from muster.core.model.wait import Wait, WaitCode

_NAMELESS: Mapping[WaitCode, str] = {
    WaitCode.BEHIND: "another user's session is ahead of it in the queue, and this one would be in its way",
    WaitCode.PREEMPTING: "starts when sessions of lower priority have given their room to it",
    WaitCode.DEPENDENCY: "starts once the sessions that it is to come after have come that far",
    WaitCode.NEVER_RUNS: "never runs: a session that it is to come after has not ended well; submit it anew",
}


def redacted(wait: Wait, hidden: Collection[str]) -> Wait:
    """Return the wait without names and ids of the `hidden` sessions (ids), which its message may hold."""
    if not any(session_id in hidden for session_id in wait.waits_for):
        return wait
    visible = tuple(session_id for session_id in wait.waits_for if session_id not in hidden)
    message = _NAMELESS.get(wait.code, "starts when other users' sessions let it")
    return replace(wait, message=message, waits_for=visible)
