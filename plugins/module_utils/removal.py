"""Removing containers and networks for good, whatever else is under way in the engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .engine_api import EngineError

if TYPE_CHECKING:
    from .engine_api import EngineApi

_PATIENCE_S = 30
_POLL_S = 0.05


def remove_container(engine: EngineApi, container_id: str) -> None:
    """Remove a container; returns when it is gone."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        try:
            engine.remove_container(container_id)
        except EngineError as error:
            # 409: a removal that an interrupted run asked for is still under way.
            if error.status != 409 or time.monotonic() > give_up_at:
                raise
            time.sleep(_POLL_S)
        else:
            return


def remove_network(engine: EngineApi, network_id: str) -> None:
    """Remove a network, waiting for the last endpoints on it to go."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        try:
            engine.remove_network(network_id)
        except EngineError as error:
            in_use = error.status in {400, 403, 409} and ("active endpoints" in str(error) or "in use" in str(error))
            if not in_use or time.monotonic() > give_up_at:
                raise
            time.sleep(_POLL_S)
        else:
            return
