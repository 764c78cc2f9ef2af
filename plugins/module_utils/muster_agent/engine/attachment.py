"""A container's attachment to an overlay, which some engines keep for ever when the container's start fails."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .api import DESCRIPTION_PATIENCE_S, EngineError

if TYPE_CHECKING:
    from .api import EngineApi

_NO_ROOM = ("no space left on device", "disk quota exceeded")


class HeldError(EngineError):
    """The error of a container that must not be removed yet: its engine would hold its overlay for ever."""


def give_back_attachment(engine: EngineApi, container_id: str) -> None:
    """Have the engine give back the attachment of a container that is to be removed, if it has forgotten it.

    Where the engine's disk is full, a start fails after the attachment and before the container's sandbox is made.
    Docker 20.10 then never gives the attachment back: to the swarm the overlay is in use until the engine is started
    again. The engine gives it back once the container is taken off the overlay, put on it again, started and removed.
    The container's command does not begin by that, since it was never released.

    Raises HeldError while the disk is full.
    """
    network = _held_overlay(engine, container_id)
    if not network:
        return
    with suppress(EngineError):  # it is off already: an earlier try could not write that down
        engine.disconnect_network(network, container_id)
    try:
        engine.connect_network(network, container_id)
        engine.start_container(container_id)
    except EngineError as error:
        # A start that fails later than the first one did gives back what was attached.
        if any(words in str(error) for words in _NO_ROOM) and _held_overlay(engine, container_id):
            message = f"the engine would hold network {network} for it until the engine is started again: {error}"
            raise HeldError(error.status, message) from error


def _held_overlay(engine: EngineApi, container_id: str) -> str:
    """Return the overlay that a container holds though its start failed; empty if there is none."""
    try:
        found = engine.container(container_id, DESCRIPTION_PATIENCE_S)
        if not _failed_before_its_sandbox(found):
            return ""
        name = found["HostConfig"]["NetworkMode"]
        return name if engine.network(name)["Scope"] == "swarm" else ""
    except EngineError as error:
        if error.status != 404:
            raise
        return ""  # the container or the network is gone


def _failed_before_its_sandbox(found: dict[str, Any]) -> bool:
    state = found["State"]
    return bool(state["Status"] == "created" and state["Error"] and not found["NetworkSettings"]["SandboxID"])
