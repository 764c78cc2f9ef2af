"""Which ids mean one image: engines keep images in two ways, and each gives the same image an id of its own."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from muster.core.agents.agent import Agent


@dataclass(frozen=True, slots=True)
class ImageIds:
    """What is known of ids, by images that were copied from one kind of engine to the other.

    `config_ids` has by such an id the digest of the image's configuration, which is its id on the other kind.
    """

    config_ids: Mapping[str, str] = field(default_factory=dict)

    def are_one(self, first: str | None, second: str | None) -> bool:
        """Return whether two ids are known to mean the same image; None means none."""
        return first is not None and second is not None and self._config_id(first) == self._config_id(second)

    def distinct(self, image_ids: Iterable[str]) -> list[str]:
        """Return one id for each image among those ids, in order."""
        found: dict[str, str] = {}
        for image_id in sorted(set(image_ids)):
            found.setdefault(self._config_id(image_id), image_id)
        return list(found.values())

    def on(self, agent: Agent, image_id: str) -> str | None:
        """Return the id that an image has on an agent; None where it was not seen there."""
        return next((held.id for held in agent.report.images if self.are_one(held.id, image_id)), None)

    def _config_id(self, image_id: str) -> str:
        return self.config_ids.get(image_id, image_id)
