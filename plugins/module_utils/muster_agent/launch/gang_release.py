"""Releasing a gang whose kernels on all agents have started: here, all of them or none."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from .. import names
from ..engine.api import EngineError
from .beginning import let_begin
from .kernel_sshd import SshdWait, vanished
from .launch_error import first_failure
from .peer_names import await_names, peers_of

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

    from ..engine.api import EngineApi
    from ..manifest import Kernel, Manifest
    from ..plan import Release

_NAMES_PATIENCE_S = 5


class GangRelease:
    """A session's release on this host: `begin` it, then take its `failure`."""

    def __init__(self, engine: EngineApi, manifest: Manifest, release: Release) -> None:
        self._engine = engine
        self.release = release
        self.session = release.session
        self._manifest = manifest
        self._timeout_s = manifest.start_timeout_s
        self._given_up = threading.Event()
        self._sshds = SshdWait(engine, manifest, release.session, self._given_up)
        self._answers: list[Future[None]] = []

    def check(self) -> None:
        """Raise LaunchError if a kernel has ended or vanished; waits for nothing."""
        for kernel, seen in self.release.waiting:
            self._sshds.living(kernel, _container_id(kernel, seen))

    def begin(self, pool: ThreadPoolExecutor) -> None:
        give_up_at = time.monotonic() + self._timeout_s
        self._answers = [pool.submit(self._await_answer, *pair, give_up_at) for pair in self.release.waiting]

    def failure(self) -> BaseException | None:
        """Return why the gang must not begin, or None: then its commands here do."""
        failure = first_failure(self._answers)
        if failure is not None:
            return failure
        self._await_names()
        return let_begin(self._manifest, self.session, [kernel.name for kernel, _ in self.release.waiting])

    def _await_names(self) -> None:
        """Give this host time to learn the names of the gang's kernels on others; without them it begins too."""
        seen = next((seen for _, seen in self.release.waiting if seen is not None), None)
        if seen is None or self.session.network["driver"] != names.OVERLAY:
            return
        with suppress(EngineError):
            container = self._engine.container(seen.id)
            await_names(container["State"]["Pid"], peers_of(container), _NAMES_PATIENCE_S)

    def _await_answer(self, kernel: Kernel, seen: names.SeenContainer | None, give_up_at: float) -> None:
        try:
            self._sshds.until_it_listens(kernel, _container_id(kernel, seen), give_up_at)
        except BaseException:  # whatever it was, the other kernels need not be waited for; it is raised again
            self._given_up.set()
            raise


def _container_id(kernel: Kernel, seen: names.SeenContainer | None) -> str:
    if seen is None:
        raise vanished(kernel)
    return seen.id
