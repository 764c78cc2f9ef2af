"""Where an agent gets an image that it lacks: one made of a session from another agent, any other from its registry."""

from collections.abc import Callable

from muster.core.agent import Agent, AgentState
from muster.core.errors import AgentUnreachableError, ImageError
from muster.core.image_names import familiar
from muster.engine.images import copy, pull
from muster.store.store import Store


class ImageSource:
    """No registry is ever asked for an image that was made here: it could have another one of that name."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, agent: Agent, reference: str, progressed: Callable[[int, int], None]) -> None:
        """Raises ImageError."""
        name, _, tag = familiar(reference).rpartition(":")
        image = self._store.images.find(name, tag)
        if image is None:
            pull(agent, reference, progressed)
            return
        holding = [
            other
            for other in self._store.agents()
            if other.state is AgentState.ALIVE and (image.image_id in other.images or other.id == image.agent_id)
        ]
        if not holding:
            raise ImageError(f"image {reference}: no agent that answers holds it", permanent=False)
        source = min(holding, key=lambda other: other.id != image.agent_id)
        try:
            copy(source, agent, image.reference, progressed)
        except AgentUnreachableError as error:
            raise ImageError(f"image {reference} cannot be copied: {error}", permanent=False) from None
