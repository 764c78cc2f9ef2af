"""Warnings about new sessions: what is allowed, and may still go wrong."""

from collections.abc import Sequence

from muster.core.model.session import Session
from muster.service.images.catalog import unknown_images
from muster.settings import Settings
from muster.store.store import Store


def warnings_about(store: Store, settings: Settings, new: Sequence[Session]) -> list[str]:
    """Return a line for each warning about sessions of one spec."""
    images = {kernel.image for session in new[:1] for kernel in session.kernels}
    excluded = {name for session in new[:1] for name in session.spec.exclude_agents}
    known = {agent.id for agent in store.agents.all()} if excluded else set()
    return [
        *(
            f"image {image}: neither the catalog nor an agent has it; it is pulled from its registry, if that has it"
            for image in unknown_images(settings, store, sorted(images))
        ),
        *(f"there is no agent {name!r}, which is to be excluded; is it misspelt?" for name in sorted(excluded - known)),
    ]
