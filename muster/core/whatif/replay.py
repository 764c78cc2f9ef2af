"""Replay `schedule` in a world in which something is changed."""

from dataclasses import dataclass, replace

from muster.core.model.plan import Plan
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.schedule import schedule
from muster.core.whatif.hypothesis import Change, applied

WHOLE_QUEUE = 300
"""In longer queues the sessions behind it are left out of the replays: a decision reads the queue from its head."""


@dataclass
class Replays:
    """The replays that are left to find what would let one session start, after the changes `before`."""

    snapshot: Snapshot
    ahead: Snapshot
    session: Session
    left: int
    before: tuple[Change, ...] = ()

    def starts(self, *changes: Change, in_full: bool = False) -> bool:
        """Return whether the changes let it start; False also when no replay is left."""
        plan = self.plan(*changes, in_full=in_full)
        return plan is not None and any(placement.session_id == self.session.id for placement in plan.placements)

    def plan(self, *changes: Change, in_full: bool = False) -> Plan | None:
        """Return the changed world's plan; None when no replay is left.

        With `in_full`, the sessions behind it and those of other groups are included.
        """
        if self.left <= 0:
            return None
        self.left -= 1
        world = self.snapshot if in_full else self.ahead
        return schedule(applied((*self.before, *changes), world, self.session.id))


def ahead_of(session: Session, snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Return the snapshot without the pending sessions that no decision about this one looks at.

    Kept are those ahead of it in its group, those that are placed in this decision (they count for limits), and those
    that one of the kept depends on.
    """
    if len(snapshot.pending) <= WHOLE_QUEUE:
        return snapshot
    placed = {placement.session_id for placement in plan.placements}
    own = plan.waits[session.id].position
    kept = {session.id, *placed}
    needed = set(session.spec.dependencies)
    for other in snapshot.pending:
        is_behind = other.spec.resource_group != session.spec.resource_group or (
            other.id not in kept and plan.waits[other.id].position > own
        )
        if other.id in kept or not is_behind:
            kept.add(other.id)
            needed.update(other.spec.dependencies)
    rest = (s for s in snapshot.sessions if s.state is not SessionState.PENDING or s.id in kept or s.id in needed)
    return replace(snapshot, sessions=tuple(rest))
