"""The promise that what runs is within the limits (docs/scheduling.md)."""

from collections.abc import Iterable

from muster.core.model.policy import EACH, Limit, Limits
from muster.core.model.session import Session


def beyond_limits(limits: Limits, holding: Iterable[Session], placed: Iterable[Session]) -> str:
    """Return which limit sessions go beyond that were just placed; empty where they keep to all of them.

    `holding` are all sessions with a place, also those that have ended and are only to be removed. Those who were
    beyond a limit when it was set may stay beyond it, but get no more.
    """
    holding, placed = list(holding), list(placed)
    for kind, of_kind, name_of in (
        ("user", limits.users, lambda session: session.owner),
        ("project", limits.projects, lambda session: session.spec.project),
        ("resource group", limits.resource_groups, lambda session: session.spec.resource_group),
    ):
        for name in {name_of(session) for session in placed}:
            theirs = [session for session in holding if name_of(session) == name]
            kernels = [kernel for session in theirs for kernel in session.kernels]
            counted = {"sessions": len(theirs), "kernels": len(kernels)}
            counted["cpu"] = sum(kernel.slots.cpu for kernel in kernels)
            bounds = of_kind.get(name, of_kind.get(EACH, Limit())).running
            beyond = [f"{counted[what]} {what}" for what, most in bounds.items() if counted[what] > most]
            if beyond:
                return f"{kind} {name} runs {', '.join(beyond)}, beyond {bounds}"
    return ""
