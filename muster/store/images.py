"""Images made of sessions, in the database."""

from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from muster.core.images.committed import CommittedImage
from muster.core.values.errors import NameTakenError
from muster.store.database.connection import reading, writing
from muster.store.database.tables import images

ABANDONED_AFTER_S = 300.0
"""How long nobody may have touched an image that is being made before its maker counts as dead."""
_FIELDS = tuple(field.name for field in fields(CommittedImage))


class CommittedImages:
    """A table of committed images, keyed by name and tag. A row stays from the start of its build until its removal."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine

    def claim(self, image: CommittedImage) -> None:
        """Keep the name for an image that is being made, whose maker touches it. Raises NameTakenError.

        One that was abandoned gives its name up.
        """
        now = image.created_at
        values = {**{name: getattr(image, name) for name in _FIELDS}, "touched_at": now}
        with writing(self._engine) as connection:
            connection.execute(sa.delete(images).where(*_this(image.name, image.tag), _abandoned(now)))
            try:
                connection.execute(sa.insert(images).values(values))
            except sa.exc.IntegrityError:
                raise NameTakenError(
                    f"NAME:TAG: there is an image {image.reference} already, or it is being made;"
                    f" choose another tag, or `muster images rm {image.reference}`"
                ) from None

    def touch(self, image: CommittedImage, now: float) -> None:
        """Record that the image is still being made."""
        with writing(self._engine) as connection:
            connection.execute(sa.update(images).where(*_claim_of(image)).values(touched_at=now))

    def is_abandoned(self, name: str, tag: str, now: float) -> bool:
        """Return whether its maker has died before it was made."""
        query = sa.select(images.c.name).where(*_this(name, tag), _abandoned(now))
        with reading(self._engine) as connection:
            return connection.execute(query).first() is not None

    def made(self, image: CommittedImage) -> bool:
        """Record that the image is made: from now on sessions may use it. Return False where its name was lost."""
        with writing(self._engine) as connection:
            changes = {"image_id": image.image_id, "size_bytes": image.size_bytes}
            return bool(connection.execute(sa.update(images).where(*_claim_of(image)).values(changes)).rowcount)

    def give_up(self, image: CommittedImage) -> None:
        """Forget an image that is not made after all. A name that was lost meanwhile stays another's."""
        with writing(self._engine) as connection:
            connection.execute(sa.delete(images).where(*_claim_of(image)))

    def forget(self, image: CommittedImage) -> bool:
        """Forget an image; return whether it was there. Another that has its name since stays."""
        with writing(self._engine) as connection:
            return bool(connection.execute(sa.delete(images).where(*_same(image))).rowcount)

    def find(self, name: str, tag: str) -> CommittedImage | None:
        """Return an image, also one that is still being made."""
        with reading(self._engine) as connection:
            row = connection.execute(sa.select(images).where(*_this(name, tag))).mappings().first()
        return _image(row) if row else None

    def all(self) -> tuple[CommittedImage, ...]:
        """Return the images that are made, by name and time."""
        query = sa.select(images).where(images.c.image_id != "").order_by(images.c.name, images.c.created_at)
        with reading(self._engine) as connection:
            return tuple(map(_image, connection.execute(query).mappings()))


def _this(name: str, tag: str) -> tuple[Any, Any]:
    return images.c.name == name, images.c.tag == tag


def _same(image: CommittedImage) -> tuple[sa.ColumnElement[bool], ...]:
    """Match the row of this image, and not that of who has taken its name over since."""
    is_same = (getattr(images.c, name) == getattr(image, name) for name in ("session_id", "kernel_name", "created_at"))
    return *_this(image.name, image.tag), *is_same


def _claim_of(image: CommittedImage) -> tuple[sa.ColumnElement[bool], ...]:
    """Match the row of this image while it is being made."""
    return *_same(image), images.c.image_id == ""


def _abandoned(now: float) -> sa.ColumnElement[bool]:
    return sa.and_(images.c.image_id == "", images.c.touched_at < now - ABANDONED_AFTER_S)


def _image(row: sa.RowMapping) -> CommittedImage:
    return CommittedImage(**{name: row[name] for name in _FIELDS})
