"""Why a session waits, as somebody is told of it who may not see all of the sessions that it waits for."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from muster.core.model.plan import Wait, WaitCode

_NAMELESS: Mapping[WaitCode, str] = {
    WaitCode.BEHIND: "another user's session is ahead of it in the queue, and this one would be in its way",
    WaitCode.PREEMPTING: "starts when sessions of lower priority have given their room to it",
    WaitCode.DEPENDENCY: "starts once the sessions that it is to come after have come that far",
    WaitCode.NEVER_RUNS: "never runs: a session that it is to come after has not ended well; submit it anew",
}


def discreet(wait: Wait, hidden: Collection[str]) -> Wait:
    """The wait without names and ids of the sessions `hidden` (ids), which its message may hold."""
    if not any(session_id in hidden for session_id in wait.waits_for):
        return wait
    seen = tuple(session_id for session_id in wait.waits_for if session_id not in hidden)
    message = _NAMELESS.get(wait.code, "starts when other users' sessions let it")
    return replace(wait, message=message, waits_for=seen)
