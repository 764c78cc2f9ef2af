"""Removing containers and networks for good, whatever else is under way in the engine; and the files beside them."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ..folders import staging
from ..gpus.fgpu_state import remove_state
from .api import EngineError
from .attachment import give_back_attachment
from .kernel_cgroup import remove_groups

if TYPE_CHECKING:
    from ..names import ClusterPaths
    from .api import EngineApi

_PATIENCE_S = 30
# Other agents may have kernels on an overlay for as long as they like; the control node asks again.
_OVERLAY_PATIENCE_S = 1
_POLL_S = 0.05


def remove_container(engine: EngineApi, container_id: str, *, has_run: bool = False) -> None:
    """Remove a container; returns when it is gone. Raises EngineError, HeldError among them.

    One that `has_run` holds nothing that the engine has forgotten, so the engine is not made to look.
    """
    if not has_run:
        give_back_attachment(engine, container_id)
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        try:
            # One that hangs is tried again at the next visit; this one's launches wait for its removals.
            engine.remove_container(container_id, _PATIENCE_S)
        except EngineError as error:
            # 409: a removal that an interrupted run requested is still under way.
            if error.status != 409 or time.monotonic() > give_up_at:
                raise
            time.sleep(_POLL_S)
        else:
            return


def remove_network(engine: EngineApi, network_id: str, patience_s: float = _PATIENCE_S) -> None:
    """Remove a network, waiting for the last endpoints on it to go."""
    give_up_at = time.monotonic() + patience_s
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


def remove_overlay(engine: EngineApi, network_id: str) -> None:
    """Remove an overlay; returns when this host shows it no more, which is a moment after the swarm has let it go.

    Raises EngineError, also where the swarm knows it no more and this host shows it still.
    """
    give_up_at = time.monotonic() + _OVERLAY_PATIENCE_S
    try:
        remove_network(engine, network_id, _OVERLAY_PATIENCE_S)
    except EngineError as error:
        if f"{network_id} not found" not in str(error):  # status 500, where a network's is 404
            raise
    while network_id in {network["Id"] for network in engine.networks()}:
        if time.monotonic() > give_up_at:
            raise EngineError(409, "the swarm has let it go, and this host shows it still")
        time.sleep(_POLL_S)


def remove_files(paths: ClusterPaths, session_id: str, kernel_name: str = "") -> None:
    """Remove a kernel's control groups, keys, state on GPUs and mounts of folders, or those of all of a session's.

    The keys go last: by them reports name the session, and the next run finds what a run that was killed here left.
    """
    remove_groups(paths.cluster, session_id, kernel_name)
    staging.remove(paths, session_id, kernel_name)
    remove_state(paths, session_id, kernel_name)
    with suppress(FileNotFoundError):
        shutil.rmtree(paths.keys / session_id / kernel_name)
