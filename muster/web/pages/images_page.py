"""`/images`: the image catalog, as far as the visitor may know of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Response

from muster.core.values.slots import Slots, format_bytes, format_slots
from muster.web.viewer import Visiting

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """One image that a session may have. `word` is what it is asked for by, `held_by` the agents that have it."""

    version: str
    word: str
    launch: str
    aliases: Sequence[str]
    reference: str
    architecture: str
    least: str
    size: str
    held_by: Sequence[str]
    differ: int
    is_default: bool
    is_site_default: bool
    users: Sequence[str]
    projects: Sequence[str]
    made: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class ShownImage:
    """A name of the catalog with its versions."""

    name: str
    description: str
    labels: Mapping[str, str]
    versions: Sequence[ShownVersion]


@router.get("/images")
def images(visitor: Visiting) -> Response:
    listed = visitor.backend.images()
    agents = len(visitor.backend.agents({}))
    return visitor.page("images.html", images=shown_images(listed), agents=agents)


def shown_images(listed: Sequence[Mapping[str, Any]]) -> list[ShownImage]:
    """In the catalog's order, versions of one name together."""
    order = {name: number for number, name in enumerate(dict.fromkeys(image["name"] for image in listed))}
    ordered = sorted(listed, key=lambda image: order[image["name"]])
    found = []
    for name, group in groupby(ordered, key=lambda image: str(image["name"])):
        versions = list(group)
        described = next((image for image in versions if image["is_default_version"]), versions[0])
        found.append(
            ShownImage(
                name, described["description"], described["labels"], [_shown_version(image) for image in versions]
            )
        )
    return found


def _shown_version(image: Mapping[str, Any]) -> ShownVersion:
    word = image["name"] if image["is_default_version"] else f"{image['name']}:{image['version']}"
    size = image["size_bytes"]
    return ShownVersion(
        version=image["version"],
        word=word,
        launch=f"/launch?{urlencode({'image': word})}",
        aliases=image["aliases"],
        reference=image["reference"],
        architecture=image["architecture"] or "any",
        least=_least(image["minimum"]),
        size="-" if size is None else format_bytes(size),
        held_by=image["agents"],
        differ=len(image["image_ids"]),
        is_default=image["is_default_version"],
        is_site_default=image["default"],
        users=image["users"],
        projects=image["projects"],
        made=image["committed"],
    )


def _least(minimum: Mapping[str, int]) -> str:
    slots = Slots(minimum["cpu_milli"], minimum["mem_bytes"], minimum["fgpu_milli"], minimum["gpu"])
    return format_slots(slots) if slots != Slots() else "-"
