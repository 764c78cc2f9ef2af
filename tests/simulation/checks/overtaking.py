"""The promise that no decision overtakes people: it heeds what they said after its look (docs/guarantees.md)."""

from collections.abc import Collection

from muster.core.lifecycle.transitions import Event
from muster.core.model.session import Session, SessionState
from muster.core.values.units import exact_duration

_S = SessionState


def unheeded(before: Session, after: Session, event: Event, drained: Collection[str]) -> str:
    """Return what a person had said and this event of a session does not heed; empty where it heeds everything.

    `drained` are the agents that somebody has drained.
    """
    if (before.state, after.state) == (_S.PENDING, _S.SCHEDULED):
        if before.held_by is not None:
            return f"{before.name} is placed, and {before.held_by} holds it"
        if out_of_service := [agent_id for agent_id in after.agents if agent_id in drained]:
            return f"{before.name} is placed on {', '.join(out_of_service)}, drained"
    limit = f"its time limit of {exact_duration(before.time_limit or 0)} "
    is_by_limit = before.state is _S.RUNNING and event.reason.startswith("its time limit of ")
    if is_by_limit and not event.reason.startswith(limit):
        return f"{before.name} may run for {before.time_limit} s, and {event.reason}"
    return ""
