"""Users' own presets of the launch page, in the database."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from muster.core.values.errors import BadInputError, NotFoundError
from muster.store.database.connection import reading, upsert, writing
from muster.store.database.counters import counted_alone
from muster.store.database.tables import presets

# A counter that each one that is saved raises.
_NUMBER = "presets"


@dataclass(frozen=True, slots=True)
class OwnPreset:
    """A user's preset. `spec` holds the fields of a session spec, as they are written."""

    owner: str
    name: str
    spec: Mapping[str, Any]
    changed_at: float


class PresetRows:
    """A table of presets, keyed by owner and name."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def of(self, owner: str) -> tuple[OwnPreset, ...]:
        """Return the owner's presets in their names' order."""
        query = sa.select(presets).where(presets.c.owner == owner)
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings().all()
        return tuple(sorted((OwnPreset(**row) for row in rows), key=lambda preset: preset.name))

    def put(self, preset: OwnPreset, most: int) -> None:
        """Save a preset, in place of the owner's of that name. Raises BadInputError for one more than `most`."""
        others = sa.select(sa.func.count()).where(presets.c.owner == preset.owner, presets.c.name != preset.name)
        row = {
            "owner": preset.owner,
            "name": preset.name,
            "spec": dict(preset.spec),
            "changed_at": preset.changed_at,
        }
        with writing(self._engine) as connection:
            if counted_alone(connection, _NUMBER, others) >= most:
                raise BadInputError(f"preset: you have {most} presets; remove one of them first")
            upsert(connection, presets, [row])

    def remove(self, owner: str, name: str) -> OwnPreset:
        """Remove a preset and return it. Raises NotFoundError."""
        is_it = sa.and_(presets.c.owner == owner, presets.c.name == name)
        with writing(self._engine) as connection:
            row = connection.execute(sa.select(presets).where(is_it)).mappings().first()
            if row is None:
                raise NotFoundError(f"you have no preset {name!r} of your own; choose one that you have saved")
            connection.execute(sa.delete(presets).where(is_it))
        return OwnPreset(**row)
