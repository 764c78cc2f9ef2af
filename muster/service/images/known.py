"""The catalog's images with which agents hold them, and what is known of how they were made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from muster.core.images.catalog import ImageVersion
from muster.core.images.committed import CommittedImage
from muster.core.values.errors import NotFoundError
from muster.service.images.catalog import holders, load_catalog, size_on
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class KnownImage:
    """An image. `held_by` is its id by agent id, `size_bytes` that of the largest; None if no agent holds it.

    `image_ids` are one id for each image that agents hold under this name.
    """

    version: ImageVersion
    held_by: Mapping[str, str]
    image_ids: Sequence[str]
    size_bytes: int | None
    is_site_default: bool
    committed: CommittedImage | None = None


def known_images(store: Store, settings: Settings, user: str, *, sees_all: bool = False) -> list[KnownImage]:
    """Return the images that `user` may see; with `sees_all` everybody's. Raises SettingsError."""
    agents = store.agents.all()
    default = settings.default_image
    made = store.images.all()
    ids = store.image_ids.all()
    listed: list[tuple[ImageVersion, CommittedImage | None]] = [
        *((version, None) for version in load_catalog(settings.catalog).versions),
        *((image.version, image) for image in made),
    ]
    known = []
    for version, committed in listed:
        if not (sees_all or version.visible_to(user, partial(settings.members.admit, user))):
            continue
        held = holders(agents, version.reference)
        size = committed.size_bytes if committed else size_on(agents, set(held.values()))
        is_default = default in {*version.words, version.reference}
        known.append(KnownImage(version, held, ids.distinct(held.values()), size, is_default, committed))
    return known


def named_images(known: Sequence[KnownImage], name: str) -> list[KnownImage]:
    """Return all versions of NAME, or that of NAME:VERSION, an alias, or a reference. Raises NotFoundError."""
    found = [image for image in known if name in {*image.version.words, image.version.name, image.version.reference}]
    if not found:
        raise NotFoundError(f"NAME: there is no image {name!r} in the catalog; see `muster images`")
    return found
