"""Removing an image that was made of a session."""

import time
from dataclasses import dataclass

from muster.core.images.committed import CommittedImage, parse_name
from muster.core.images.names import familiar
from muster.core.model.session import FINAL
from muster.core.values.errors import BadInputError, MusterError, NotFoundError, NotPossibleInStateError
from muster.engine.commit import remove
from muster.service.identity.permissions import is_administrator
from muster.service.wake import AGENTS, wake
from muster.settings import Settings
from muster.store.store import Store


@dataclass(frozen=True, slots=True)
class RemovedImage:
    """The agents that no longer have the image, and by agent id why another could not remove it."""

    agent_ids: list[str]
    failures: dict[str, str]


def remove_image(store: Store, settings: Settings, reference: str, by: str) -> RemovedImage:
    """Remove an image from all agents, then from the catalog; it stays there while an agent cannot remove it.

    Raises NotFoundError, and NotPossibleInStateError where it is another's, is being made, or sessions need it.
    """
    image = _found(store, reference)
    if by != image.owner and not is_administrator(settings, by):
        raise NotPossibleInStateError(f"image {reference} is {image.owner}'s; only its author can remove it")
    if not image.is_made and not store.images.is_abandoned(image.name, image.tag, time.time()):
        raise NotPossibleInStateError(f"image {reference} is being made; remove it once it is there")
    users = sorted(
        session.name
        for session in store.snapshot(time.time()).sessions
        if session.state not in FINAL and any(familiar(kernel.image) == image.reference for kernel in session.kernels)
    )
    if users:
        raise NotPossibleInStateError(f"image {reference} is used by session {', '.join(users[:5])}; end it first")
    removed, failures = [], {}
    for agent in store.agents():
        # The agent that made it may have it before any report shows it.
        if image.reference not in agent.images and agent.id != image.agent_id:
            continue
        try:
            remove(agent, image.reference)
            removed.append(agent.id)
        except MusterError as error:
            failures[agent.id] = str(error)
    if not failures:
        store.images.forget(image)
    wake(settings, store, AGENTS)
    return RemovedImage(removed, failures)


def _found(store: Store, reference: str) -> CommittedImage:
    try:
        name, tag = parse_name(reference)
    except ValueError as error:
        raise BadInputError(f"NAME:TAG: {error}") from None
    image = store.images.find(name, tag)
    if image is None:
        raise NotFoundError(
            f"NAME:TAG: no image {reference} was made by `muster commit`; what its file lists is removed there"
        )
    return image
