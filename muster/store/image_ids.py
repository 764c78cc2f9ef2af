"""Further ids of images, which engines give them that keep images in another way."""

from collections.abc import Iterable

import sqlalchemy as sa

from muster.core.images.identity import ImageIds
from muster.store.database.connection import reading, upsert, writing
from muster.store.database.tables import image_ids


class ImageIdRows:
    """A row for each id that is no configuration's digest, of an image that was copied."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def add(self, config_id: str, ids: Iterable[str]) -> None:
        """Record that these ids mean the image with that configuration."""
        others = sorted(set(ids) - {config_id} - self.all().config_ids.keys())
        if others:
            with writing(self._engine) as connection:
                upsert(connection, image_ids, [{"image_id": each, "config_id": config_id} for each in others])

    def all(self) -> ImageIds:
        """Return all that is known."""
        with reading(self._engine) as connection:
            rows = connection.execute(sa.select(image_ids.c.image_id, image_ids.c.config_id))
            return ImageIds({row.image_id: row.config_id for row in rows})
