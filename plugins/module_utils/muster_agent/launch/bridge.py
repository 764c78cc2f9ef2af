"""Making the network of a session that is on this host alone."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..engine import container_spec
from ..engine.api import EngineError
from .launch_error import LaunchError

if TYPE_CHECKING:
    from ..engine.api import EngineApi
    from ..manifest import Session

_POLL_S = 0.01
_PATIENCE_S = 10
_SAME_BRIDGE = "networks have same bridge name"
_NO_SUBNET = "address pool"


def make_bridge(engine: EngineApi, cluster: str, session: Session, spare: list[str]) -> None:
    """Make the network, unless a request that a killed run had sent makes it. Raises LaunchError.

    Where the engine has no subnet left, `spare` networks are removed: they hold one each.
    """
    body = container_spec.bridge_body(cluster, session)
    while True:
        try:
            engine.create_network(body)
        except EngineError as error:
            if _is_made_already(engine, body, error):
                return
            if _NO_SUBNET not in str(error) or not _gives_way(engine, spare):
                raise LaunchError(_message(session, error), permanent=error.status == 400) from error
        else:
            return


def _gives_way(engine: EngineApi, spare: list[str]) -> bool:
    """Remove a spare network and return True, or False if there is none. Launches share the list."""
    try:
        name = spare.pop()
    except IndexError:
        return False
    with suppress(EngineError):
        engine.remove_network(name)
    return True


def _is_made_already(engine: EngineApi, body: dict[str, Any], refusal: EngineError) -> bool:
    """Return whether the network is there, or comes: the engine makes the bridge first, then its entry."""
    is_under_way = _SAME_BRIDGE in str(refusal)
    if refusal.status != 409 and not is_under_way:
        return False
    labels = [f"{name}={value}" for name, value in body["Labels"].items()]
    give_up_at = time.monotonic() + _PATIENCE_S
    while body["Name"] not in {network["Name"] for network in engine.networks(*labels)}:
        if not is_under_way or time.monotonic() > give_up_at:
            return False
        time.sleep(_POLL_S)
    return True


def _message(session: Session, error: EngineError) -> str:
    name = session.network["name"]
    if _NO_SUBNET in str(error):
        return f"network {name}: the engine has no subnet left on this agent (roles/docker_engine widens its pools)"
    return f"network {name}: {error}"
