"""When a waiting session will start, as far as that is known; otherwise, why it is unknown."""

from collections.abc import Mapping

from muster.core.model.wait import WaitCode
from muster.core.whatif.explain import HOPELESS, NOT_WORKED, ExplainedWait, Surroundings, moment_text

_AFTER: Mapping[WaitCode, str] = {
    WaitCode.HELD: "not before it is released",
    WaitCode.DEPENDENCY: "after the sessions that it waits for",
    WaitCode.LIMIT: "when something that the limit counts has ended",
    WaitCode.ARRAY: "when another one of its array has ended",
    WaitCode.WINDOW: "when agents are no longer set aside for others, or other agents are free",
    WaitCode.PREEMPTING: "as soon as those that are preempted have ended",
}
_ENDLESS = "unknown, since what it waits for has no time limit"
_FAR = "unknown, since what it waits for has no time limit, too many are ahead of it, or agents are set aside by then"


def start_estimate(wait: ExplainedWait | None, around: Surroundings) -> str:
    """Return a start such as `2026-11-21 14:20 (in 20m)`, `not before …`, `never, as it is`, or `unknown, since …`.

    Where no time is known, what it waits for is named instead. None: it starts now.
    """
    if wait is not None and wait.code in HOPELESS:
        return "never, as it is"
    if not around.is_worked:
        return NOT_WORKED
    if wait is None:
        return "now"
    if wait.estimated_start is not None:
        return moment_text(wait.estimated_start, around)
    if wait.until is not None:
        return f"not before {moment_text(wait.until, around)}"
    return _AFTER.get(wait.code, _ENDLESS if wait.endless else _FAR)
