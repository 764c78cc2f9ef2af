"""Replay `schedule` in a world in which something is changed."""

import math
from dataclasses import dataclass, replace

from muster.core.model.plan import Plan
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot
from muster.core.scheduling.admission import Admission
from muster.core.scheduling.committed import committed
from muster.core.scheduling.future import end_of
from muster.core.scheduling.schedule import schedule
from muster.core.whatif.hypothesis import Change, Later, Moved, applied

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

    def starts_if_moved(self, session_ids: tuple[str, ...]) -> bool:
        """Return whether it starts, and each of these running ones again, if they are queued again behind it."""
        plan = self.plan(Moved(session_ids))
        placed = set() if plan is None else {placement.session_id for placement in plan.placements}
        return placed.issuperset((self.session.id, *session_ids))

    def plan(self, *changes: Change, in_full: bool = False) -> Plan | None:
        """Return the changed world's plan; None when no replay is left.

        With `in_full`, the sessions behind it and those of other groups are included.
        """
        if self.left <= 0:
            return None
        self.left -= 1
        world = self.snapshot if in_full else self.ahead
        return schedule(applied((*self.before, *changes), world, self.session.id))

    def window_end(self) -> float | None:
        """Return when the first of the windows ends that close agents to it after the changes `before`."""
        world = applied(self.before, self.ahead, self.session.id)
        session = next(session for session in world.pending if session.id == self.session.id)
        return Admission(world).window_end(session)

    def start_by_time_limits(self) -> tuple[Later, Session] | None:
        """Return the world in which it starts if sessions end by their time limits one after another, and the last.

        After each end there is a decision, in which others may start. None where a session without a time limit has to
        end first, where somebody is preempted, and when no replay is left.
        """
        world = applied(self.before, self.ahead, self.session.id)
        ended: list[str] = []
        last: Session | None = None
        while self.left > 0:
            self.left -= 1
            plan = schedule(world)
            if any(placement.session_id == self.session.id for placement in plan.placements):
                ids = {session.id for session in self.ahead.pending}
                started = tuple(session for session in world.placed if session.id in ids)
                return (Later(tuple(ended), world.now, started), last) if last is not None else None
            if plan.preemptions:
                return None
            world = committed(world, plan)
            ends = [(end_of(session, world.now), session.id, session) for session in world.placed]
            at = min((end for end, _, _ in ends), default=math.inf)
            if math.isinf(at):
                return None
            over = sorted((session_id, session) for end, session_id, session in ends if end <= at)
            ended += [session_id for session_id, _ in over]
            last = over[-1][1]
            world = Later(tuple(session_id for session_id, _ in over), at).applied(world, self.session.id)
        return None


def ahead_of(session: Session, snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Return the snapshot without pending sessions that cannot change the decision about this one.

    It keeps those ahead of it in its group, and those placed in this decision, since they count for limits. It also
    keeps those that one of these depends on.
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
