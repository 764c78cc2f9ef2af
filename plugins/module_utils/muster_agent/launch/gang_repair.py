"""Put running kernels back on their session's network, if it was removed or they were disconnected."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..engine.api import EngineError
from ..names import OVERLAY
from .bridge import make_bridge
from .launch_error import LaunchError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..engine.api import EngineApi
    from ..manifest import Manifest
    from ..names import SeenContainer
    from ..plan import Repair

# In the same visit, the keeper makes the overlay on another host.
_OVERLAY_PATIENCE_S = 15
_POLL_S = 0.25


def reconnect(
    engine: EngineApi, manifest: Manifest, repair: Repair, overlay: Future[None] | None, spare: list[str]
) -> None:
    """Make the network if it is missing, and connect the kernels under the same names; their processes go on.

    `overlay` is the making of the network, where this host makes an overlay in this run. `spare` networks may be
    removed to make room for it. Raises LaunchError.
    """
    try:
        if overlay is not None:
            overlay.result()
        if repair.network_missing:
            make_bridge(engine, manifest.cluster, repair.session, spare)
    except (LaunchError, EngineError) as error:
        first = repair.cut_off[0].kernel_name
        message = f"{first}: its network was removed from this agent and cannot be made again: {error}"
        raise LaunchError(message, permanent=False) from error
    for seen in repair.cut_off:
        _connect(engine, repair, seen)


def _connect(engine: EngineApi, repair: Repair, seen: SeenContainer) -> None:
    network = repair.session.network
    give_up_at = time.monotonic() + (_OVERLAY_PATIENCE_S if network["driver"] == OVERLAY else 0)
    while True:
        try:
            engine.connect_network(network["name"], seen.id, seen.kernel_name)
        except EngineError as error:
            if _needs_nothing(engine, seen, network["name"]):
                return
            if time.monotonic() >= give_up_at:
                message = f"{seen.kernel_name}: it was cut off its network on this agent and cannot be connected again"
                raise LaunchError(f"{message}: {error}", permanent=False) from error
            time.sleep(_POLL_S)
        else:
            return


def _needs_nothing(engine: EngineApi, seen: SeenContainer, network: str) -> bool:
    """Return whether the kernel is on the network (by the request of a run that was killed), or no longer runs."""
    try:
        container = engine.container(seen.id)
    except EngineError as error:
        if error.status != 404:
            raise
        return True
    endpoint = container["NetworkSettings"]["Networks"].get(network)
    return container["State"]["Status"] != "running" or bool(endpoint and endpoint["IPAddress"])
