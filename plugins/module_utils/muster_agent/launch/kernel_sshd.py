"""Whether a kernel's sshd answers: by the ports that programs in its network listen on, which costs the kernel nothing.

A greeting would cost it a process for the connection: with a twentieth of a core, a sixth of a second.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.api import EngineError
from .launch_error import GivenUpError, LaunchError
from .listening_port import ListeningPort

if TYPE_CHECKING:
    import threading

    from ..engine.api import EngineApi
    from ..manifest import Kernel, Manifest, Session

# Kernels that are slow to start, such as many at once, are looked at less often: their sshds need the time.
_POLL_S, _LONGEST_POLL_S, _PART_OF_THE_TIME = 0.01, 0.1, 0.2
# To inspect a container costs the engine some milliseconds, also of those that others start meanwhile. That one has
# ended shows by its process.
_INSPECT_PAUSE_S = 0.1
_LIVING_INSPECT_PAUSE_S = 1.0
_PROC = Path("/proc")


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
        began = time.monotonic()
        pid, inspected_at = 0, 0.0
        port: ListeningPort | None = None
        with ExitStack() as opened:
            while True:
                now = time.monotonic()
                unseen_s = now - inspected_at
                if unseen_s >= _LIVING_INSPECT_PAUSE_S or (unseen_s >= _INSPECT_PAUSE_S and not _is_there(pid)):
                    pid = self._pid_of(kernel, self.living(kernel, container_id))
                    inspected_at = now
                if pid and port is None:
                    port = opened.enter_context(closing(ListeningPort(pid, self._port)))
                if port is not None and port.is_open():
                    return
                if self._given_up.is_set():
                    raise GivenUpError
                if now > give_up_at:
                    message = f"{kernel.name}: its sshd does not answer {self._timeout_s} s after the start"
                    raise LaunchError(message + self._last_line(container_id), permanent=False)
                time.sleep(min(_LONGEST_POLL_S, max(_POLL_S, _PART_OF_THE_TIME * (now - began))))

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


def _is_there(pid: int) -> bool:
    return pid > 0 and (_PROC / str(pid)).exists()
