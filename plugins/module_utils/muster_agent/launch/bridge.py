"""Making the network of a session that is on this host alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ..engine import container_spec
from ..engine.api import EngineError
from .launch_error import LaunchError

if TYPE_CHECKING:
    from ..engine.api import EngineApi
    from ..manifest import Session

_POLL_S = 0.01
_PATIENCE_S = 10
_SAME_BRIDGE = "networks have same bridge name"


def make_bridge(engine: EngineApi, cluster: str, session: Session) -> None:
    """Make the network, unless a request that a killed run had sent makes it. Raises LaunchError."""
    try:
        engine.create_network(container_spec.bridge_body(cluster, session))
    except EngineError as error:
        if not _is_made_already(engine, cluster, session, error):
            raise LaunchError(_message(session, error), permanent=error.status == 400) from error


def _is_made_already(engine: EngineApi, cluster: str, session: Session, refusal: EngineError) -> bool:
    """Return whether the network is there, or comes: the engine makes the bridge first, then its entry."""
    is_under_way = _SAME_BRIDGE in str(refusal)
    if refusal.status != 409 and not is_under_way:
        return False
    labels = container_spec.labels(cluster, session.id, session.generation)
    give_up_at = time.monotonic() + _PATIENCE_S
    while not (made := engine.networks(*(f"{name}={labels[name]}" for name in labels))):
        if not is_under_way or time.monotonic() > give_up_at:
            break
        time.sleep(_POLL_S)
    return bool(made)


def _message(session: Session, error: EngineError) -> str:
    name = session.network["name"]
    if "address pool" in str(error):
        return f"network {name}: the engine has no subnet left on this agent (roles/docker_engine widens its pools)"
    return f"network {name}: {error}"
