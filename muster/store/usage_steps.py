"""What kernels used over their lives, in the database: a row for each step of a kernel's launch."""

from collections.abc import Iterable
from dataclasses import asdict, fields

import sqlalchemy as sa

from muster.core.usage.history import KEPT_S, UsageStep, merged
from muster.store.database.connection import reading, upsert, writing
from muster.store.database.tables import sessions, usage_steps

_CHUNK = 500
_FIELDS = tuple(field.name for field in fields(UsageStep))
_SUMS = ("cpu", "cpu_known", "mem", "mem_known", "gpu", "gpu_known")


class UsageSteps:
    """A table of steps. A sample is added to its step; `thin` merges a kernel's steps into longer ones."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, steps: Iterable[UsageStep]) -> None:
        """Add samples; those of sessions that were removed since are left out."""
        rows = [asdict(step) for step in sorted(steps, key=lambda one: (one.kernel_id, one.begins_at))]
        for start in range(0, len(rows), _CHUNK):
            some = rows[start : start + _CHUNK]
            with writing(self._engine) as connection:
                ids = sorted({row["session_id"] for row in some})
                there = set(connection.execute(sa.select(sessions.c.id).where(sessions.c.id.in_(ids))).scalars())
                upsert(connection, usage_steps, [row for row in some if row["session_id"] in there], summed=_SUMS)

    def thin(self, kernel_id: str, generation: int, step_s: int) -> None:
        """Merge a kernel's steps into steps of this length."""
        of_kernel = sa.and_(usage_steps.c.kernel_id == kernel_id, usage_steps.c.generation == generation)
        with writing(self._engine) as connection:
            found = _steps(connection, sa.select(usage_steps).where(of_kernel))
            fewer = merged(found, step_s)
            if len(fewer) < len(found):
                connection.execute(sa.delete(usage_steps).where(of_kernel))
                connection.execute(sa.insert(usage_steps), [asdict(step) for step in fewer])

    def of_session(self, session_id: str) -> list[UsageStep]:
        """Return the steps of all launches, oldest first."""
        with reading(self._engine) as connection:
            return _steps(connection, sa.select(usage_steps).where(usage_steps.c.session_id == session_id))

    def remove_old(self, now: float) -> None:
        with writing(self._engine) as connection:
            connection.execute(sa.delete(usage_steps).where(usage_steps.c.begins_at < now - KEPT_S))


def _steps(connection: sa.Connection, query: sa.Select[tuple[object, ...]]) -> list[UsageStep]:
    ordered = query.order_by(usage_steps.c.generation, usage_steps.c.kernel_id, usage_steps.c.begins_at)
    return [UsageStep(**{name: row[name] for name in _FIELDS}) for row in connection.execute(ordered).mappings()]
