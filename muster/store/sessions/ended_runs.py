"""What ended sessions had of their agents, and for how long: of these is made up what their owners have used."""

import sqlalchemy as sa

from muster.core.usage.by_owner import SessionRun
from muster.core.values.slots import Slots
from muster.store.database.tables import kernels, sessions


def ended_runs(connection: sa.Connection, after: float) -> dict[str, SessionRun]:
    """Return by session id the runs of those that ended later than that."""
    query = (
        sa.select(
            *(sessions.c[name] for name in ("id", "owner", "resource_group", "started_at", "ended_at")), kernels.c.slots
        )
        .join(kernels, kernels.c.session_id == sessions.c.id)
        .where(sessions.c.ended_at > after, sessions.c.started_at.is_not(None))
        .where(sa.or_(sessions.c.given.is_(None), kernels.c.rank < sessions.c.given))
    )
    runs: dict[str, SessionRun] = {}
    for row in connection.execute(query):
        slots = Slots(**row.slots) + (runs[row.id].slots if row.id in runs else Slots())
        runs[row.id] = SessionRun(row.owner, row.resource_group, slots, row.started_at, row.ended_at)
    return runs
