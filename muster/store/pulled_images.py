"""The images that Muster pulled to agents: when each was last needed, and when it was removed."""

from collections.abc import Sequence
from dataclasses import asdict, fields

import sqlalchemy as sa

from muster.core.images.collection import PulledImage
from muster.store.database.connection import reading, upsert, writing
from muster.store.database.tables import pulled_images

_NAMES = [field.name for field in fields(PulledImage)]
# For so long administrators see removed images.
_SHOWN_S = 30 * 86400


class PulledImages:
    """A row for each agent and name."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def save(self, images: Sequence[PulledImage]) -> None:
        """Add the images, or replace what is known of them."""
        with writing(self._engine) as connection:
            upsert(connection, pulled_images, [asdict(image) for image in images])

    def all(self) -> list[PulledImage]:
        """Return all in the order of agents and names."""
        columns = [pulled_images.c[name] for name in _NAMES]
        query = sa.select(*columns).order_by(pulled_images.c.agent_id, pulled_images.c.reference)
        with reading(self._engine) as connection:
            return [PulledImage(*row) for row in connection.execute(query)]

    def forget_old(self, now: float) -> None:
        """Forget what was removed so long ago that it is shown no more."""
        with writing(self._engine) as connection:
            connection.execute(sa.delete(pulled_images).where(pulled_images.c.removed_at < now - _SHOWN_S))
