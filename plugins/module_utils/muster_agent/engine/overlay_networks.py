"""Overlay networks as one host of a swarm sees them: who may keep them, and whether kernels on them are apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import names
from ..launch.launch_error import LaunchError
from ..names import GATEWAY_BRIDGE
from . import container_spec
from .api import EngineError

if TYPE_CHECKING:
    from ..manifest import Overlay
    from .api import EngineApi

_ACTIVE = "active"
BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_TALK_AMONG_CONTAINERS = "com.docker.network.bridge.enable_icc"


def swarm_of(info: dict[str, Any]) -> dict[str, Any]:
    """Return the report's `swarm` from what the engine says of itself."""
    swarm = info["Swarm"]
    return {
        "state": swarm["LocalNodeState"] or "inactive",
        "node_id": swarm["NodeID"] or None,
        "manager": swarm["ControlAvailable"],
    }


def obstacle(engine: EngineApi, swarm: dict[str, Any]) -> str:
    """Return in one line why no kernel on an overlay may start on this host; empty if it may."""
    if swarm["state"] != _ACTIVE:
        return f"this agent's swarm is {swarm['state']}, and overlay networks need it active (roles/overlay_network)"
    # Kernels on any overlay share the gateway bridge; only the engine's firewall keeps them apart there.
    if _talk_is_allowed(engine):
        return (
            f"kernels of different sessions would reach each other over {GATEWAY_BRIDGE} on this agent, since it was"
            f" made without {_TALK_AMONG_CONTAINERS}=false (roles/overlay_network)"
        )
    if not BRIDGE_FILTER.exists() or BRIDGE_FILTER.read_text("ascii").strip() != "1":
        return (
            f"kernels of different sessions would reach each other over {GATEWAY_BRIDGE} on this agent:"
            " net.bridge.bridge-nf-call-iptables is not 1 (roles/overlay_network)"
        )
    return ""


def _talk_is_allowed(engine: EngineApi) -> bool:
    try:
        options = engine.network(GATEWAY_BRIDGE)["Options"] or {}
    except EngineError as error:
        if error.status == 404:  # the engine makes it with the first container that needs it, and closed
            return False
        raise
    return options.get(_TALK_AMONG_CONTAINERS) != "false"


def make_overlay(engine: EngineApi, cluster: str, overlay: Overlay) -> None:
    """Make an overlay; one that is there already is fine when it is this session's."""
    try:
        engine.create_network(container_spec.overlay_body(cluster, overlay))
    except EngineError as error:
        # 409: made by another manager of the swarm, or by a request that a killed run had sent.
        labels = (names.of_cluster(cluster), names.of_session(overlay.session_id))
        if error.status == 409 and overlay.name in {network["Name"] for network in engine.networks(*labels)}:
            return
        message = f"overlay network {overlay.name} cannot be made: {error}"
        raise LaunchError(message, permanent=error.status == 400) from error
