"""The world after a plan: what the next decision finds if nothing else happens."""

from dataclasses import replace

from muster.core.model.plan import Placement, Plan
from muster.core.model.session import Session, SessionState
from muster.core.model.snapshot import Snapshot


def running(session: Session, placement: Placement, started_at: float) -> Session:
    """Return the session as it runs where the plan places it, since then."""
    given = placement.allocations
    if len(given) != len(session.kernels):
        session = session.of_size(len(given))
    kernels = tuple([replace(kernel, allocation=given[kernel.id]) for kernel in session.kernels])
    return replace(
        session,
        kernels=kernels,
        state=SessionState.RUNNING,
        placed_mode=placement.mode,
        started_at=started_at,
        wait=None,
        moved_for=None,
    )


def committed(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Return the snapshot in which what the plan places runs already, and the others have its reasons to wait."""
    placed = {placement.session_id: placement for placement in plan.placements}

    def after(session: Session) -> Session:
        if session.id in placed:
            return running(session, placed[session.id], snapshot.now)
        return replace(session, wait=plan.waits.reasons[session.id]) if session.id in plan.waits else session

    return replace(snapshot, sessions=tuple(map(after, snapshot.sessions)))
