"""The heartbeat of what works the queue: one row, written again and again."""

import sqlalchemy as sa

from muster.core.model.heartbeat import Heartbeat
from muster.store.database.connection import reading, upsert, writing
from muster.store.database.tables import NOT_ENDED, heartbeats, sessions

# One queue is worked by one at a time.
_QUEUE = "queue"


class Heartbeats:
    """The row of a store."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def save(self, heartbeat: Heartbeat) -> None:
        """Replace the last heartbeat, also by an earlier one: the clock may have been set back."""
        values = {"at": heartbeat.at, "worker": heartbeat.worker, "host": heartbeat.host, "pid": heartbeat.pid}
        with writing(self._engine) as connection:
            upsert(connection, heartbeats, [{"name": _QUEUE, **values}])

    def last(self) -> Heartbeat | None:
        """Return the last heartbeat; None if the queue was never worked."""
        columns = (heartbeats.c.at, heartbeats.c.worker, heartbeats.c.host, heartbeats.c.pid)
        with reading(self._engine) as connection:
            row = connection.execute(sa.select(*columns).where(heartbeats.c.name == _QUEUE)).first()
        return None if row is None else Heartbeat(*row)

    def oldest_session(self) -> float | None:
        """Return when the oldest session that has not ended was submitted; None if there is none."""
        with reading(self._engine) as connection:
            oldest: float | None = connection.execute(
                sa.select(sa.func.min(sessions.c.submitted_at)).where(NOT_ENDED)
            ).scalar()
        return oldest
