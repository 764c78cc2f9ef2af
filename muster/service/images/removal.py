"""Removing an image that was made of a session."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from muster.core.images.committed import CommittedImage, parse_name
from muster.core.images.names import familiar
from muster.core.model.session import FINAL, Session
from muster.core.model.token import Token
from muster.core.values.errors import MusterError, NotFoundError, NotPossibleInStateError
from muster.engine.commit import remove
from muster.service.identity.permissions import check_may_change
from muster.service.wake import AGENTS, wake
from muster.settings import Settings
from muster.store.store import Store

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class RemovedImage:
    """The agents that no longer have the image, and by agent id why another could not remove it."""

    agent_ids: list[str]
    failures: dict[str, str]


def remove_image(
    store: Store, settings: Settings, reference: str, token: Token, sees: Callable[[Session], bool]
) -> RemovedImage:
    """Remove an image from all agents, then from the catalog; it stays there while an agent cannot remove it.

    Raises ScopeError, NotFoundError as if there were only what the token's user may see, and NotPossibleInStateError
    where it is another's, is being made, or sessions need it.
    """
    check_may_change(token)
    image = _found(store, settings, reference, token)
    if not (token.sees_all or token.user == image.owner):
        raise NotPossibleInStateError(f"image {reference} is {image.owner}'s; only its author can remove it")
    if not image.is_made and not store.images.is_abandoned(image.name, image.tag, time.time()):
        raise NotPossibleInStateError(f"image {reference} is being made; remove it once it is there")
    users = [
        session
        for session in store.snapshot(time.time()).sessions
        if session.state not in FINAL and any(familiar(kernel.image) == image.reference for kernel in session.kernels)
    ]
    if users:
        names = sorted(session.name for session in users if sees(session))
        listed = ", ".join(f"session {name}" for name in names[:_MOST_NAMED]) or "sessions of other users"
        raise NotPossibleInStateError(f"image {reference} is used by {listed}; remove it once they have ended")
    removed, failures = [], {}
    for agent in store.agents.all():
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


def _found(store: Store, settings: Settings, reference: str, token: Token) -> CommittedImage:
    try:
        name, tag = parse_name(reference)
    except ValueError as error:
        raise NotFoundError(f"NAME:TAG: {error}") from None
    image = store.images.find(name, tag)
    if image is None or not _is_visible(image, settings, token):
        raise NotFoundError(
            f"NAME:TAG: no image {reference} was made by `muster commit`; what its file lists is removed there"
        )
    return image


def _is_visible(image: CommittedImage, settings: Settings, token: Token) -> bool:
    if token.sees_all or token.user == image.owner:
        return True
    return image.is_made and image.version.visible_to(token.user, partial(settings.members.admit, token.user))
