"""Limits and share weights that administrators set, in the database."""

from typing import Any

import sqlalchemy as sa

from muster.core.model.overrides import Limited, LimitOverride, Overrides, WeightOverride
from muster.core.model.policy import Limit
from muster.core.values.errors import NotFoundError
from muster.store.database.connection import reading, upsert, writing
from muster.store.database.tables import limit_overrides, weight_overrides

_LIMITS = sa.select(limit_overrides).order_by(limit_overrides.c.limited, limit_overrides.c.name)
_WEIGHTS = sa.select(weight_overrides).order_by(weight_overrides.c.owner)


class OverrideRows:
    """A table of limits, keyed by what they are for, and one of share weights, keyed by owner."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def all(self) -> Overrides:
        """Return all of them as of one moment."""
        with reading(self._engine) as connection:
            limits = connection.execute(_LIMITS).mappings().all()
            weights = connection.execute(_WEIGHTS).mappings().all()
        return Overrides(tuple(map(_limit, limits)), tuple(WeightOverride(**row) for row in weights))

    def set_limit(self, override: LimitOverride) -> None:
        """Set a limit in place of the one that was set before."""
        row = {
            "limited": override.limited.value,
            "name": override.name,
            "running": dict(override.limit.running),
            "pending": dict(override.limit.pending),
            "changed_by": override.changed_by,
            "changed_at": override.changed_at,
        }
        with writing(self._engine) as connection:
            upsert(connection, limit_overrides, [row])

    def unset_limit(self, limited: Limited, name: str) -> LimitOverride:
        """Remove a limit and return it. Raises NotFoundError."""
        this = sa.and_(limit_overrides.c.limited == limited.value, limit_overrides.c.name == name)
        with writing(self._engine) as connection:
            row = connection.execute(sa.select(limit_overrides).where(this)).mappings().first()
            if row is None:
                raise NotFoundError(f"no administrator has set a limit for {limited.spelled} {name!r}")
            connection.execute(sa.delete(limit_overrides).where(this))
        return _limit(row)

    def set_weight(self, override: WeightOverride) -> None:
        """Set an owner's share weight in place of the one that was set before."""
        row = {
            "owner": override.owner,
            "weight": override.weight,
            "changed_by": override.changed_by,
            "changed_at": override.changed_at,
        }
        with writing(self._engine) as connection:
            upsert(connection, weight_overrides, [row])

    def unset_weight(self, owner: str) -> WeightOverride:
        """Remove an owner's share weight and return it. Raises NotFoundError."""
        this = weight_overrides.c.owner == owner
        with writing(self._engine) as connection:
            row = connection.execute(sa.select(weight_overrides).where(this)).mappings().first()
            if row is None:
                raise NotFoundError(f"no administrator has set a share weight for user {owner!r}")
            connection.execute(sa.delete(weight_overrides).where(this))
        return WeightOverride(**row)


def _limit(row: sa.RowMapping) -> LimitOverride:
    fields: dict[str, Any] = {**row}
    limit = Limit(fields.pop("running"), fields.pop("pending"))
    return LimitOverride(**{**fields, "limited": Limited(row["limited"])}, limit=limit)
