"""Whether a kernel's sshd answers, probed from its host."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

from ..engine.api import EngineError
from ..names import GATEWAY_BRIDGE, OVERLAY
from .launch_error import GivenUpError, LaunchError

if TYPE_CHECKING:
    import threading

    from ..engine.api import EngineApi
    from ..manifest import Kernel, Manifest, Session

_POLL_S = 0.01
# To inspect a container costs the engine some milliseconds, also of those that others start meanwhile.
_INSPECT_PAUSE_S = 0.1
_LONGEST_INSPECT_PAUSE_S = 1.0
_CONNECT_TIMEOUT_S = 0.25
_GREETING_TIMEOUT_S = 2


class SshdWait:
    """A wait for the sshds of one gang's kernels, until one of them makes the gang give up."""

    def __init__(self, engine: EngineApi, manifest: Manifest, session: Session, given_up: threading.Event) -> None:
        self._engine = engine
        self._port = manifest.sshd_port
        self._timeout_s = manifest.start_timeout_s
        self._network = session.network
        self._given_up = given_up

    def until_it_greets(self, kernel: Kernel, container_id: str, give_up_at: float) -> None:
        """Return when the kernel's sshd greets; its command has not begun, so an end now is no end of that."""
        address, inspect_at, pause_s = None, 0.0, _INSPECT_PAUSE_S
        while True:
            if address is None or time.monotonic() >= inspect_at:
                address = self._address_of(kernel, self.living(kernel, container_id))
                inspect_at = time.monotonic() + pause_s
                pause_s = min(2 * pause_s, _LONGEST_INSPECT_PAUSE_S)
            if address and _greets(address, self._port):
                return
            if self._given_up.is_set():
                raise GivenUpError
            if time.monotonic() > give_up_at:
                message = f"{kernel.name}: its sshd does not answer {self._timeout_s} s after the start"
                raise LaunchError(message + self._last_line(container_id), permanent=False)
            time.sleep(_POLL_S)

    def living(self, kernel: Kernel, container_id: str) -> dict[str, Any]:
        """Return the kernel's container; raises LaunchError when it has ended or is gone."""
        try:
            container = self._engine.container(container_id)
        except EngineError as error:
            if error.status != 404:
                raise
            raise vanished(kernel) from error
        state = container["State"]
        if state["Status"] in {"exited", "dead"}:
            message = f"{kernel.name}: the container ended at once with exit code {state['ExitCode']}"
            raise LaunchError(message + self._last_line(container_id), permanent=False)
        return container

    def _address_of(self, kernel: Kernel, container: dict[str, Any]) -> str | None:
        endpoint = container["NetworkSettings"]["Networks"].get(self._network["name"])
        if endpoint is None:
            raise LaunchError(f"{kernel.name}: it was cut off its network on this agent", permanent=False)
        if self._network["driver"] != OVERLAY:
            return endpoint["IPAddress"] or None
        # A host cannot reach an overlay's addresses; each container on one is on this bridge as well.
        gateway = self._engine.network(GATEWAY_BRIDGE)["Containers"].get(container["Id"])
        return gateway["IPv4Address"].partition("/")[0] if gateway else None

    def _last_line(self, container_id: str) -> str:
        lines = b"".join(self._engine.logs(container_id, tail="5")).decode(errors="replace").split("\n")
        lines = [" ".join(line.split()) for line in lines if line.strip()]
        return f": {lines[-1]}" if lines else ""


def vanished(kernel: Kernel) -> LaunchError:
    return LaunchError(f"{kernel.name}: its container has vanished from this agent", permanent=False)


def _greets(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), _CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(_GREETING_TIMEOUT_S)
            greeting = connection.recv(64)
            # Without a greeting back sshd would log an error in the kernel's output.
            connection.sendall(b"SSH-2.0-muster\r\n")
    except OSError:
        return False
    return greeting.startswith(b"SSH-2.0")
