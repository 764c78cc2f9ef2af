"""Select pulled images that agents no longer need: those unused for long, if the disk is short."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from muster.core.agents.agent import Agent


@dataclass(frozen=True, slots=True)
class PulledImage:
    """An image that Muster pulled to an agent, by its name as engines list it.

    `needed_at` is when it was pulled, or when a session that needs it was last seen there.
    """

    agent_id: str
    reference: str
    image_id: str
    needed_at: float
    removed_at: float | None = None


@dataclass(frozen=True, slots=True)
class CollectionRules:
    """The rules for unused images: how long they are kept, and how much of its disk an agent keeps free."""

    keep_s: float
    min_free_bytes: int


def removable(
    agent: Agent, pulled: Iterable[PulledImage], kept: Collection[str], now: float, rules: CollectionRules
) -> PulledImage | None:
    """Return the image that the agent is to remove next, the one unused for longest; None for none.

    `kept` are names and ids of images that a session or the catalog needs. An image with another id than Muster pulled
    has another origin, and stays.
    """
    disk = agent.report.disk
    if not disk.total_bytes or disk.free_bytes >= rules.min_free_bytes:
        return None
    held = {tag: image.id for image in agent.report.images for tag in image.tags}
    found = [
        image
        for image in pulled
        if (image.agent_id, image.removed_at) == (agent.id, None)
        and held.get(image.reference) == image.image_id
        and image.reference not in kept
        and image.image_id not in kept
        and now - image.needed_at >= rules.keep_s
    ]
    return min(found, key=lambda image: (image.needed_at, image.reference), default=None)
