"""Whether a kernel's sshd answers: by the ports that its network namespace listens on, which cost the kernel nothing.

A greeting would cost it a process for the connection: with a twentieth of a core, a sixth of a second.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.api import EngineError
from .launch_error import GivenUpError, LaunchError

if TYPE_CHECKING:
    import threading

    from ..engine.api import EngineApi
    from ..manifest import Kernel, Manifest, Session

_POLL_S = 0.01
# To inspect a container costs the engine some milliseconds, also of those that others start meanwhile.
_INSPECT_PAUSE_S = 0.1
_LONGEST_INSPECT_PAUSE_S = 1.0
_PROC = Path("/proc")
_TABLES = ("net/tcp", "net/tcp6")
_LOCAL, _STATE = 1, 3
_LISTEN = "0A"


class SshdWait:
    """A wait for the sshds of one gang's kernels, until one of them makes the gang give up."""

    def __init__(self, engine: EngineApi, manifest: Manifest, session: Session, given_up: threading.Event) -> None:
        self._engine = engine
        self._port = manifest.sshd_port
        self._timeout_s = manifest.start_timeout_s
        self._network = session.network
        self._given_up = given_up

    def until_it_listens(self, kernel: Kernel, container_id: str, give_up_at: float) -> None:
        """Return when the kernel's sshd listens; its command has not begun, so an end now is no end of that."""
        pid, inspect_at, pause_s = 0, 0.0, _INSPECT_PAUSE_S
        while True:
            if not pid or time.monotonic() >= inspect_at:
                pid = self._pid_of(kernel, self.living(kernel, container_id))
                inspect_at = time.monotonic() + pause_s
                pause_s = min(2 * pause_s, _LONGEST_INSPECT_PAUSE_S)
            if pid and listens(pid, self._port):
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

    def _pid_of(self, kernel: Kernel, container: dict[str, Any]) -> int:
        """Return the number of a process of the kernel's, 0 while it has no address; raises LaunchError if cut off."""
        endpoint = container["NetworkSettings"]["Networks"].get(self._network["name"])
        if endpoint is None:
            raise LaunchError(f"{kernel.name}: it was cut off its network on this agent", permanent=False)
        return int(container["State"]["Pid"]) if endpoint["IPAddress"] else 0

    def _last_line(self, container_id: str) -> str:
        lines = b"".join(self._engine.logs(container_id, tail="5")).decode(errors="replace").split("\n")
        lines = [" ".join(line.split()) for line in lines if line.strip()]
        return f": {lines[-1]}" if lines else ""


def vanished(kernel: Kernel) -> LaunchError:
    return LaunchError(f"{kernel.name}: its container has vanished from this agent", permanent=False)


def listens(pid: int, port: int, proc: Path = _PROC) -> bool:
    """Return whether a program listens on this TCP port, at any address, in the network namespace of a process."""
    ending = f":{port:04X}"
    for table in _TABLES:
        try:
            rows = (proc / str(pid) / table).read_text("ascii").splitlines()[1:]
        except OSError:  # the process has ended, or the host has no IPv6
            continue
        columns = (row.split() for row in rows)
        if any(row[_STATE] == _LISTEN and row[_LOCAL].endswith(ending) for row in columns):
            return True
    return False
