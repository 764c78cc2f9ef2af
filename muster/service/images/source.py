"""Where an agent gets an image that it lacks: one made of a session from another agent, any other from its registry."""

import time
from collections.abc import Callable
from contextlib import suppress

from muster.core.agents.agent import Agent, AgentState
from muster.core.images.collection import PulledImage
from muster.core.images.committed import CommittedImage
from muster.core.images.identity import ImageIds
from muster.core.images.names import familiar
from muster.core.values.errors import AgentUnreachableError, ImageError, SettingsError
from muster.engine.images import IMAGE_ID, ExpectedImage, copy, image_id, pull
from muster.service.images.catalog import is_the_sites
from muster.service.images.distribution import note_ids
from muster.settings import Settings
from muster.store.store import Store

_POLL_S = 1.0


class ImageSource:
    """An image that was made here is never pulled from a registry, which could have another one of that name.

    One that is still being made is waited for.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._sleep = sleep

    def __call__(self, agent: Agent, reference: str, progressed: Callable[[int, int], None]) -> None:
        """Raises ImageError."""
        name, _, tag = familiar(reference).rpartition(":")
        image = self._made_image(name, tag)
        try:
            held = image_id(agent, familiar(reference))
            if image is None:
                # It may have come there since the agent last reported.
                if held is None:
                    pull(agent, reference, progressed, with_credentials=self._is_the_sites(reference))
                    self._note_pull(agent, familiar(reference))
                return
            ids = self._store.image_ids.all()
            if not ids.are_one(held, image.image_id):
                holder = self._holder(image, ids)
                held_there = ids.on(holder, image.image_id) or image.image_id
                expected = ExpectedImage(held_there, self._settings.image_max_size)
                copied = copy(holder, agent, image.reference, expected, progressed)
                note_ids(self._store, [copied])
        except AgentUnreachableError as error:
            raise ImageError(f"image {reference} cannot be brought there: {error}", permanent=False) from None

    def _made_image(self, name: str, tag: str) -> CommittedImage | None:
        """Return the image of that name once it is made; None where nobody makes one. Raises ImageError."""
        images = self._store.images
        while (image := images.find(name, tag)) is not None and not image.is_made:
            if images.is_abandoned(name, tag, self._clock()):
                problem = "making it was interrupted; commit it again"
                raise ImageError(f"image {image.reference}: {problem}", permanent=False)
            self._sleep(_POLL_S)
        return image

    def _note_pull(self, agent: Agent, name: str) -> None:
        """Write down that it came there by Muster, which may remove no other; not what the agent answers oddly."""
        with suppress(AgentUnreachableError, ImageError):
            pulled = image_id(agent, name)
            if isinstance(pulled, str) and IMAGE_ID.fullmatch(pulled):
                self._store.pulled_images.save([PulledImage(agent.id, name, pulled, self._clock())])

    def _is_the_sites(self, reference: str) -> bool:
        """Return whether the site chose the image: its credentials are for no other. Raises ImageError."""
        try:
            return is_the_sites(self._settings, reference)
        except SettingsError as error:
            raise ImageError(f"image {reference}: {error}", permanent=False) from None

    def _holder(self, image: CommittedImage, ids: ImageIds) -> Agent:
        """Return the agent where it was made, or another that holds it. Raises ImageError."""
        holding = [
            other
            for other in self._store.agents.all()
            if other.state is AgentState.ALIVE and (ids.on(other, image.image_id) or other.id == image.agent_id)
        ]
        if not holding:
            raise ImageError(f"image {image.reference}: no agent that answers holds it", permanent=False)
        return min(holding, key=lambda other: other.id != image.agent_id)
