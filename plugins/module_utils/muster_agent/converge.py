"""Making one host match its manifest: observe, plan, act (docs/agent-contract.md)."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from . import host_state, names
from .differences import ABSENT
from .engine import kernel_cgroup, overlay_networks
from .engine.api import EngineApi, EngineError
from .engine.removal import remove_container, remove_files, remove_network, remove_overlay
from .gpus import fgpu_state
from .launch import key_directory, last_words, notices
from .launch.gang_launch import GangLaunch, Images, check_launch
from .launch.gang_release import GangRelease
from .launch.launch_error import LaunchError
from .manifest import KEEP, LAUNCH, RELEASE, STOP
from .plan import Launch, Observed, Plan, Stop, plan_for
from .plan_differences import CONTAINERS, NETWORKS, PRESENT, described, differences_of, retract_launch, retract_release

if TYPE_CHECKING:
    from collections.abc import Callable

    from .differences import Differences
    from .manifest import Manifest, Session
    from .names import SeenContainer, SeenNetwork

_MOST_THREADS = 64
_LEAST_PATIENCE_S = 60
_OUTCOMES = {LAUNCH: "started", RELEASE: "released", KEEP: "kept", STOP: "stopped"}


class StaleGenerationError(Exception):
    """The host has accepted a newer manifest."""

    def __init__(self, agent_generation: int) -> None:
        super().__init__(f"this agent has accepted generation {agent_generation} already: the manifest is out of date")
        self.agent_generation = agent_generation


class Outcome(NamedTuple):
    sessions: list[dict[str, Any]]
    last_words: list[dict[str, Any]]
    differences: Differences


def converge(engine: EngineApi, manifest: Manifest, warn: Callable[[str], None]) -> Outcome:
    """Make the host match the manifest; `warn` is told of leftovers that resist."""
    patience_s = manifest.start_timeout_s + manifest.stop_grace_s + _LEAST_PATIENCE_S
    with host_state.one_run_at_a_time(manifest.cluster, patience_s):
        accepted = _check_generation(manifest)
        observed = observe(engine, manifest)
        _warn_of_a_keeper_that_cannot(manifest, observed, warn)
        if accepted != manifest.generation:
            host_state.write_generation(manifest.cluster, manifest.generation)
        return _Run(engine, manifest, observed, warn).outcome()


def foresee(engine: EngineApi, manifest: Manifest, warn: Callable[[str], None]) -> Outcome:
    """Return what `converge` would do, having done nothing."""
    _check_generation(manifest)
    observed = observe(engine, manifest)
    _warn_of_a_keeper_that_cannot(manifest, observed, warn)
    plan = plan_for(manifest, observed)
    differences = differences_of(plan, observed)
    notices.add_differences(differences, notices.due_notices(manifest, observed.containers))
    images = Images(engine, manifest.cluster)
    failures = {}
    for launch in plan.launches:
        try:
            check_launch(manifest, launch, images)
        except LaunchError as error:
            failures[launch.session.id] = error
            retract_launch(differences, launch)
    for release in plan.releases:
        try:
            GangRelease(engine, manifest, release).check()
        except LaunchError as error:
            failures[release.session.id] = error
            retract_release(differences, release)
    foreseen = [_session_result(session, failures.get(session.id)) for session in manifest.sessions]
    return Outcome(foreseen, _all_last_words(manifest.cluster, plan), differences)


def observe(engine: EngineApi, manifest: Manifest) -> Observed:
    cluster = manifest.cluster
    label = names.of_cluster(cluster)
    launched = {session.network["driver"] for session in manifest.sessions if session.desired == LAUNCH}
    swarm = {"manager": False}
    overlay_obstacle = ""
    if manifest.overlays is not None or names.OVERLAY in launched:
        swarm = overlay_networks.swarm_of(engine.info())
    if names.OVERLAY in launched:
        overlay_obstacle = overlay_networks.obstacle(engine, swarm)
    return Observed(
        containers=[names.SeenContainer.from_list(entry) for entry in engine.containers(label)],
        networks=[names.SeenNetwork.from_list(entry) for entry in engine.networks(label)],
        keys=key_directory.kernels_with_keys(names.ClusterPaths(cluster)),
        spools=last_words.spooled_sessions(cluster),
        is_manager=swarm["manager"],
        overlay_obstacle=overlay_obstacle,
    )


def _warn_of_a_keeper_that_cannot(manifest: Manifest, observed: Observed, warn: Callable[[str], None]) -> None:
    if manifest.overlays is not None and not observed.is_manager:
        warn("this agent is to keep the overlay networks, but is no manager of a swarm (roles/overlay_network)")


def _check_generation(manifest: Manifest) -> int | None:
    accepted = host_state.read_generation(manifest.cluster)
    if accepted is not None and accepted > manifest.generation:
        raise StaleGenerationError(accepted)
    return accepted


class _Run:
    def __init__(self, engine: EngineApi, manifest: Manifest, observed: Observed, warn: Callable[[str], None]) -> None:
        self._engine = engine
        self._manifest = manifest
        self._warn = warn
        self._paths = names.ClusterPaths(manifest.cluster)
        self._plan = plan_for(manifest, observed)
        self._differences = differences_of(self._plan, observed)
        self._notices = notices.due_notices(manifest, observed.containers)
        notices.add_differences(self._differences, self._notices)

    def outcome(self) -> Outcome:
        plan = self._plan
        for notice in self._notices:
            notices.deliver(self._engine, self._manifest.cluster, notice)
        if plan.launches:
            key_directory.ensure_memory_backed()
        if any(fgpu_state.is_needed(kernel) for launch in plan.launches for kernel in launch.missing):
            fgpu_state.ensure_root()
        removals = len(plan.discarded_containers) + sum(1 + len(stop.containers) for stop in plan.stops)
        begun = [launch.session for launch in plan.launches] + [release.session for release in plan.releases]
        launches = len(plan.missing_overlays) + sum(1 + len(session.kernels) for session in begun)
        # In both pools a task only waits for tasks that were given to its pool before it, so no pool can choke.
        with _pool(removals + len(plan.discarded_overlays)) as removing, _pool(launches) as launching:
            self._discard(removing)
            stops = [(stop, self._begin_stop(stop, removing)) for stop in plan.stops]
            failures = self._bring_up(launching)
            for stop, ended in stops:
                failures[stop.session.id] = ended.result()
            # Last, since kernels that this very run removed may have been on them.
            list(removing.map(self._discard_network, plan.discarded_overlays))
        kernel_cgroup.sweep(self._manifest.cluster, {session.id for session in self._manifest.sessions})
        for failure in failures.values():
            if failure is not None and not isinstance(failure, (LaunchError, EngineError)):
                raise failure  # a mistake of ours, told in full; its session is undone like any other
        results = [_session_result(session, failures.get(session.id)) for session in self._manifest.sessions]
        return Outcome(results, _all_last_words(self._manifest.cluster, plan), self._differences)

    def _bring_up(self, pool: ThreadPoolExecutor) -> dict[str, BaseException | None]:
        """Make overlays, launch and release; return by session why it failed, or None."""
        plan, manifest = self._plan, self._manifest
        overlays = {
            overlay.name: pool.submit(overlay_networks.make_overlay, self._engine, manifest.cluster, overlay)
            for overlay in plan.missing_overlays
        }
        images = Images(self._engine, manifest.cluster)
        gangs = [
            GangLaunch(self._engine, images, manifest, launch, pool, overlays.get(launch.session.network["name"]))
            for launch in plan.launches
        ]
        releases = [GangRelease(self._engine, manifest, release) for release in plan.releases]
        for gang in releases:
            gang.begin(pool)
        # Each in a thread of its own: a gang that is slow to fail must not hold up the others' commands.
        with _pool(len(gangs) + len(releases)) as settling:
            settled = [(gang.session.id, settling.submit(self._settle_launch, gang)) for gang in gangs]
            settled += [(gang.session.id, settling.submit(self._settle_release, gang)) for gang in releases]
        for name, made in overlays.items():
            self._settle_overlay(name, made.exception())
        return {session_id: failure.result() for session_id, failure in settled}

    def _settle_launch(self, gang: GangLaunch) -> BaseException | None:
        failure = gang.failure()
        if failure:
            self._undo(gang.launch)
        return failure

    def _settle_release(self, gang: GangRelease) -> BaseException | None:
        failure = gang.failure()
        if failure:
            retract_release(self._differences, gang.release)
        return failure

    def _settle_overlay(self, name: str, failure: BaseException | None) -> None:
        if failure is None:
            return
        if not isinstance(failure, LaunchError):
            raise failure
        self._warn(str(failure))
        self._differences.add(NETWORKS, name, ABSENT, ABSENT)

    def _discard(self, pool: ThreadPoolExecutor) -> None:
        plan = self._plan
        list(pool.map(self._discard_container, plan.discarded_containers))
        list(pool.map(self._discard_network, plan.discarded_networks))
        for session_id, name in plan.discarded_keys:
            remove_files(self._paths, session_id, name)
        for session_id in plan.discarded_spools:
            last_words.forget_words(self._manifest.cluster, session_id)

    def _discard_container(self, seen: SeenContainer) -> None:
        try:
            remove_container(self._engine, seen.id)
        except EngineError as error:
            self._warn(f"container {seen.name} cannot be removed: {error}")
            self._differences.add(CONTAINERS, seen.name, described(seen), described(seen))

    def _discard_network(self, seen: SeenNetwork) -> None:
        remove = remove_overlay if seen.driver == names.OVERLAY else remove_network
        try:
            remove(self._engine, seen.id)
        except EngineError as error:
            self._warn(f"network {seen.name} cannot be removed: {error}")
            self._differences.add(NETWORKS, seen.name, PRESENT, PRESENT)

    def _begin_stop(self, stop: Stop, pool: ThreadPoolExecutor) -> Future[EngineError | None]:
        kernels = [pool.submit(self._stop_kernel, seen) for seen in stop.containers]
        return pool.submit(self._end_stop, stop, kernels)

    def _stop_kernel(self, seen: SeenContainer) -> None:
        try:
            last_words.stop_kernel(self._engine, self._manifest, seen)
        except EngineError as error:
            # Gone, or going: by a killed run's request, which had spooled its last words, or by another's hand.
            if error.status not in {404, 409}:
                raise
        remove_container(self._engine, seen.id)

    def _end_stop(self, stop: Stop, kernels: list[Future[None]]) -> EngineError | None:
        try:
            for kernel in kernels:
                kernel.result()
        except EngineError as error:
            return error
        remove_files(self._paths, stop.session.id)
        for network in stop.networks:
            self._discard_network(network)
        return None

    def _undo(self, launch: Launch) -> None:
        """Leave nothing of a gang whose launch failed, but for an overlay, which is its keeper's."""
        session = launch.session
        labels = (names.of_cluster(self._manifest.cluster), names.of_session(session.id))
        for entry in self._engine.containers(*labels):
            self._discard_container(names.SeenContainer.from_list(entry))
        remove_files(self._paths, session.id)
        for network in map(names.SeenNetwork.from_list, self._engine.networks(*labels)):
            if network.driver != names.OVERLAY:
                self._discard_network(network)
        retract_launch(self._differences, launch)


def _pool(tasks: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, min(_MOST_THREADS, tasks)))


def _session_result(session: Session, failure: BaseException | None) -> dict[str, Any]:
    return {
        "id": session.id,
        "outcome": "failed" if failure else _outcome_of(session),
        "error": str(failure) if failure else None,
        "permanent": isinstance(failure, LaunchError) and failure.permanent,
    }


def _outcome_of(session: Session) -> str:
    return _OUTCOMES[RELEASE if session.release else session.desired]


def _all_last_words(cluster: str, plan: Plan) -> list[dict[str, Any]]:
    return [words for stop in plan.stops for words in last_words.spooled_words(cluster, stop.session.id)]
