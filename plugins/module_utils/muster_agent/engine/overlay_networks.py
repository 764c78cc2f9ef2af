"""Overlay networks as one host of a swarm sees them: who may keep them, and whether kernels on them are apart."""

from __future__ import annotations

import subprocess
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

ACTIVE = "active"
BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
# Requirements of an encrypted overlay: ESP with the engine's cipher, and the matches of its rules.
_ENCRYPTION = """
ip xfrm state add src 192.0.2.1 dst 192.0.2.2 proto esp spi 1 mode transport \\
  aead 'rfc4106(gcm(aes))' 0x0000000000000000000000000000000000000000 64 || exit
iptables --append INPUT --match policy --dir in --pol none --jump DROP || exit
iptables --append INPUT --match bpf --bytecode '1,6 0 0 0' --jump DROP ||
  iptables --append INPUT --match u32 --u32 0=0 --jump DROP
"""
_ENCRYPTION_PATIENCE_S = 10
_TALK_AMONG_CONTAINERS = "com.docker.network.bridge.enable_icc"


def swarm_of(info: dict[str, Any]) -> dict[str, Any]:
    """Return the report's `swarm` from what the engine says of itself."""
    swarm = info["Swarm"]
    return {
        "state": swarm["LocalNodeState"] or "inactive",
        "node_id": swarm["NodeID"] or None,
        "manager": swarm["ControlAvailable"],
    }


def can_encrypt() -> bool:
    """Return whether overlays of this host can be encrypted, by trying it in a network namespace that ends at once."""
    try:
        done = subprocess.run(
            ["unshare", "--net", "sh", "-c", _ENCRYPTION],
            capture_output=True,
            check=False,
            timeout=_ENCRYPTION_PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def obstacle(engine: EngineApi, swarm: dict[str, Any]) -> str:
    """Return in one line why no kernel on an overlay may start on this host; empty if it may."""
    if swarm["state"] != ACTIVE:
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
