"""`/images`: the image catalog, as far as the viewer may see it; removing what was committed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Response

from muster.core.values.slots import Slots, spell_slots
from muster.core.values.units import spell_bytes
from muster.service.images.views import CommittedImageView, ImageView, MinimumView
from muster.web.viewer import CurrentViewer

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class VersionRow:
    """A row for one image that sessions may use: `image_name` is what to write, `held_by` the agents that have it."""

    version: str
    image_name: str
    launch: str
    aliases: Sequence[str]
    reference: str
    architecture: str
    needs: str
    size: str
    held_by: Sequence[str]
    builds: int
    is_default: bool
    is_site_default: bool
    users: Sequence[str]
    projects: Sequence[str]
    made: CommittedImageView | None


@dataclass(frozen=True, slots=True)
class CatalogImage:
    """A name of the catalog with its versions."""

    name: str
    description: str
    labels: Mapping[str, str]
    versions: Sequence[VersionRow]


@router.get("/images")
def images(viewer: CurrentViewer) -> Response:
    listed = viewer.backend.images.all()
    return viewer.page("images.html", images=catalog_images(listed.items), agents=listed.agent_count)


@router.post("/images/remove")
def remove(viewer: CurrentViewer, image: Annotated[str, Form(max_length=400, pattern=r"^[^\x00]*$")] = "") -> Response:
    """Remove an image that a commit has made, from the catalog and from all agents."""
    removed = viewer.backend.images.remove(image)
    if removed.failed:
        agents = ", ".join(removed.failed)
        return viewer.announce(f"{image} is still on {agents}, and in the catalog: remove it again once these answer")
    return viewer.announce(f"{image} is removed")


def catalog_images(listed: Sequence[ImageView]) -> list[CatalogImage]:
    """Return the images in the catalog's order, with the versions of one name together."""
    order = {name: number for number, name in enumerate(dict.fromkeys(image.name for image in listed))}
    ordered = sorted(listed, key=lambda image: order[image.name])
    found = []
    for name, group in groupby(ordered, key=lambda image: image.name):
        versions = list(group)
        described = next((image for image in versions if image.is_default_version), versions[0])
        found.append(
            CatalogImage(name, described.description, described.labels, [_version_row(image) for image in versions])
        )
    return found


def _version_row(image: ImageView) -> VersionRow:
    image_name = image.name if image.is_default_version else f"{image.name}:{image.version}"
    size = image.size_bytes
    return VersionRow(
        version=image.version,
        image_name=image_name,
        launch=f"/launch?{urlencode({'image': image_name})}",
        aliases=image.aliases,
        reference=image.reference,
        architecture=image.architecture or "any",
        needs=_needs(image.minimum),
        size="-" if size is None else spell_bytes(size),
        held_by=image.agents,
        builds=len(image.image_ids),
        is_default=image.is_default_version,
        is_site_default=image.default,
        users=image.users,
        projects=image.projects,
        made=image.committed,
    )


def _needs(minimum: MinimumView) -> str:
    return spell_slots(minimum.slots) if minimum.slots != Slots() else "-"
