"""The lines of all sessions' stories, as they come."""

from dataclasses import dataclass

import sqlalchemy as sa

from muster.core.model.session import SessionState
from muster.store.database.connection import reading
from muster.store.database.tables import events, sessions


@dataclass(frozen=True, slots=True)
class Change:
    """A line of some session's story; its number `id` is above those of all earlier ones."""

    id: int
    session_id: str
    at: float
    from_state: str | None
    to_state: str
    reason: str


_placed = events.alias()
_FIELDS = [events.c[name] for name in Change.__dataclass_fields__]
_AFTER = (
    sa.select(*_FIELDS).where(events.c.id > sa.bindparam("number")).order_by(events.c.id).limit(sa.bindparam("most"))
)
_AFTER_OF_OWNER = _AFTER.join_from(events, sessions).where(sessions.c.owner == sa.bindparam("owner"))
_NAMED_AFTER = _AFTER.join_from(events, sessions).add_columns(sessions.c.name)


class Changes:
    """A stream of changes. Numbers are committed in their order: writers increment the sessions' revision first."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def after(self, number: int, limit: int, owner: str | None = None) -> list[Change]:
        """Return the changes after that number, oldest first, `limit` at the most; with `owner`, of their sessions."""
        values: dict[str, int | str] = {"number": number, "most": limit}
        statement = _AFTER
        if owner is not None:
            statement, values["owner"] = _AFTER_OF_OWNER, owner
        with reading(self._engine) as connection:
            return [Change(*row) for row in connection.execute(statement, values)]

    def named_after(self, number: int, limit: int) -> list[tuple[str, Change]]:
        """Return the same with the names that the sessions have now."""
        with reading(self._engine) as connection:
            rows = connection.execute(_NAMED_AFTER, {"number": number, "most": limit})
            return [(name, Change(*values)) for *values, name in rows]

    def counted(self, after: int) -> tuple[int, dict[str, int]]:
        """Return the newest line's number, and by state how often sessions have entered it since `after`."""
        is_change = events.c.from_state.is_distinct_from(events.c.to_state)
        newest = sa.select(sa.func.max(events.c.id))
        counts = sa.select(events.c.to_state, sa.func.count().label("sessions")).where(events.c.id > after, is_change)
        with reading(self._engine) as connection:
            number = connection.execute(newest).scalar() or after
            return number, {
                row.to_state: row.sessions for row in connection.execute(counts.group_by(events.c.to_state))
            }

    def launch_durations(self, after: int, until: int) -> list[float]:
        """Return the seconds from the placing of each session that came to run after one line and up to another."""
        began = (
            sa.select(sa.func.max(_placed.c.at))
            .where(
                _placed.c.session_id == events.c.session_id,
                _placed.c.id < events.c.id,
                _placed.c.to_state == SessionState.SCHEDULED.value,
                _placed.c.from_state.is_distinct_from(_placed.c.to_state),
            )
            .scalar_subquery()
        )
        runs = sa.select(events.c.at - began).where(
            events.c.id > after,
            events.c.id <= until,
            events.c.to_state == SessionState.RUNNING.value,
            events.c.from_state.is_distinct_from(events.c.to_state),
        )
        with reading(self._engine) as connection:
            return [max(0.0, seconds) for seconds in connection.execute(runs).scalars() if seconds is not None]
