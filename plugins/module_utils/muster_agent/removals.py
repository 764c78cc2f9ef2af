"""Taking things off a host: what no manifest wants any more, what is to stop, and launches that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import names
from .engine import kernel_cgroup
from .engine.api import EngineError
from .engine.attachment import HeldError
from .engine.removal import remove_container, remove_files, remove_network, remove_overlay
from .launch import last_words
from .plan_differences import CONTAINERS, KEYS, NETWORKS, PRESENT, WORDS, described, retract_launch

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future, ThreadPoolExecutor

    from .differences import Differences
    from .engine.api import EngineApi
    from .manifest import Manifest
    from .names import SeenContainer, SeenNetwork
    from .plan import Launch, Plan, Stop

# A report takes no more.
_MOST_LEFTOVERS = 1_000
_MOST_OF_AN_ERROR = 1_000


class Removals:
    """The removals of one run. What resists is warned of, becomes a leftover, and is no difference."""

    def __init__(
        self,
        engine: EngineApi,
        manifest: Manifest,
        plan: Plan,
        differences: Differences,
        warn: Callable[[str], None],
    ) -> None:
        self._engine = engine
        self._manifest = manifest
        self._plan = plan
        self._differences = differences
        self._warn = warn
        self._cluster = manifest.cluster
        self._paths = names.ClusterPaths(manifest.cluster)
        self._leftovers: dict[str, str] = {}  # what was to be removed -> why it is still there
        self._held: set[str] = set()  # ids of sessions of which a container needs its files for its removal

    def leave(self, what: str, why: str) -> None:
        """Note a leftover."""
        self._leftovers[what] = " ".join(why.split())[:_MOST_OF_AN_ERROR]

    def leftovers(self) -> list[dict[str, str]]:
        """Return what was to be removed and is still there, and why; no more than a report takes."""
        found = [{"name": name, "error": error} for name, error in sorted(self._leftovers.items())]
        return found[:_MOST_LEFTOVERS]

    def discard(self, pool: ThreadPoolExecutor) -> None:
        """Remove what the plan discards, but for overlays."""
        plan = self._plan
        list(pool.map(self._discard_container, plan.discarded_containers))
        list(pool.map(self._discard_network, plan.discarded_networks))
        for session_id, name in plan.discarded_keys:
            what = f"files of session {session_id}"
            if session_id in self._held or not self._removed(what, self._remove_files, session_id, name):
                self._differences.add(KEYS, f"{session_id}/{name}".rstrip("/"), PRESENT, PRESENT)
        for session_id in plan.discarded_spools:
            what = f"last words of session {session_id}"
            if not self._removed(what, last_words.forget_words, self._cluster, session_id):
                self._differences.add(WORDS, session_id, PRESENT, PRESENT)

    def discard_overlays(self, pool: ThreadPoolExecutor) -> None:
        """Remove the overlays that the plan discards: last, since kernels of this very run may have been on them."""
        list(pool.map(self._discard_network, self._plan.discarded_overlays))

    def begin_stops(self, pool: ThreadPoolExecutor) -> list[tuple[Stop, Future[BaseException | None]]]:
        """Begin to stop what the plan stops. Each future becomes why it failed, or None."""
        return [(stop, self._begin_stop(stop, pool)) for stop in self._plan.stops]

    def undo(self, launch: Launch) -> None:
        """Leave nothing of a gang whose launch failed, but for an overlay, which is its keeper's.

        What cannot be removed now has not begun, and never will: a later run removes it.
        """
        what = f"what is left of the launch of {launch.session.name}"
        self._removed(what, self._remove_containers_of, launch.session.id)
        if launch.session.id not in self._held:
            for step in (self._remove_files, self._remove_bridges_of):
                self._removed(what, step, launch.session.id)
        retract_launch(self._differences, launch)

    def sweep(self, kept: set[str]) -> None:
        """Remove the control groups of all sessions but those with an id of `kept`."""
        try:
            left = kernel_cgroup.sweep(self._cluster, kept)
        except OSError as error:
            self.leave("control groups", str(error))
            self._warn(f"control groups: {error}")
        else:
            for name in left:
                self.leave(f"control group {name}", "something is in it")

    def _removed(self, what: str, step: Callable[..., None], *arguments: object) -> bool:
        """Take a step that removes something. Note a leftover if it fails; return whether it was removed."""
        try:
            step(*arguments)
        except (EngineError, OSError) as error:
            self.leave(what, str(error))
            self._warn(f"{what} cannot be removed: {error}")
            return False
        return True

    def _remove_files(self, session_id: str, kernel_name: str = "") -> None:
        remove_files(self._paths, session_id, kernel_name)

    def _remove_container(self, seen: SeenContainer) -> None:
        try:
            remove_container(self._engine, seen.id, has_run=seen.has_run)
        except HeldError:
            self._held.add(seen.session_id)
            raise

    def _discard_container(self, seen: SeenContainer) -> None:
        if not self._removed(f"container {seen.name}", self._remove_container, seen):
            self._differences.add(CONTAINERS, seen.name, described(seen), described(seen))

    def _discard_network(self, seen: SeenNetwork) -> None:
        remove = remove_overlay if seen.driver == names.OVERLAY else remove_network
        if not self._removed(f"network {seen.name}", remove, self._engine, seen.id):
            self._differences.add(NETWORKS, seen.name, PRESENT, PRESENT)

    def _begin_stop(self, stop: Stop, pool: ThreadPoolExecutor) -> Future[BaseException | None]:
        named = {kernel.id for kernel in stop.session.kernels}
        kernels = [
            pool.submit(self._stop_kernel if seen.kernel_id in named else self._remove_container, seen)
            for seen in stop.containers
        ]
        return pool.submit(self._end_stop, stop, kernels)

    def _stop_kernel(self, seen: SeenContainer) -> None:
        last_words.stop_kernel(self._engine, self._manifest, seen)
        remove_container(self._engine, seen.id, has_run=seen.has_run)

    def _end_stop(self, stop: Stop, kernels: list[Future[None]]) -> BaseException | None:
        # Each is waited for: the others are stopped whatever becomes of one.
        failures = [failure for failure in [kernel.exception() for kernel in kernels] if failure is not None]
        if failures:
            return failures[0]
        try:
            remove_files(self._paths, stop.session.id)
        except OSError as error:
            return error
        for network in stop.networks:
            self._discard_network(network)
        return None

    def _remove_containers_of(self, session_id: str) -> None:
        for entry in self._engine.containers(names.of_cluster(self._cluster), names.of_session(session_id)):
            self._discard_container(names.SeenContainer.from_list(entry))

    def _remove_bridges_of(self, session_id: str) -> None:
        for entry in self._engine.networks(names.of_cluster(self._cluster), names.of_session(session_id)):
            network = names.SeenNetwork.from_list(entry)
            if network.driver != names.OVERLAY:
                self._discard_network(network)
