"""Making one host match its manifest: observe, plan, act (docs/agent-contract.md)."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from . import agent_names, host_state, key_directory, last_words
from .agent_manifest import KEEP, LAUNCH, STOP
from .agent_plan import Launch, Observed, Plan, Stop, differences_of, plan_for, retract_launch
from .differences import ABSENT, Differences
from .engine_api import EngineApi, EngineError
from .gang_launch import GangLaunch, Images, LaunchError, resolved_folders
from .removal import remove_container, remove_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from .agent_manifest import Manifest, Session
    from .agent_names import SeenContainer, SeenNetwork

_MOST_THREADS = 64
_LEAST_PATIENCE_S = 60
_OUTCOMES = {LAUNCH: "started", KEEP: "kept", STOP: "stopped"}


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
        if accepted != manifest.generation:
            host_state.write_generation(manifest.cluster, manifest.generation)
        return _Run(engine, manifest, observed, warn).outcome()


def foresee(engine: EngineApi, manifest: Manifest) -> Outcome:
    """Return what `converge` would do, having done nothing."""
    _check_generation(manifest)
    observed = observe(engine, manifest)
    plan = plan_for(manifest, observed)
    differences = differences_of(plan, observed)
    failures = {}
    for launch in plan.launches:
        try:
            for kernel in launch.missing:
                resolved_folders(manifest, kernel)
        except LaunchError as error:
            failures[launch.session.id] = error
            retract_launch(differences, launch)
    foreseen = [_session_result(session, failures.get(session.id)) for session in manifest.sessions]
    return Outcome(foreseen, _all_last_words(manifest.cluster, plan), differences)


def observe(engine: EngineApi, manifest: Manifest) -> Observed:
    cluster = manifest.cluster
    label = agent_names.of_cluster(cluster)
    networks = [agent_names.SeenNetwork.from_list(entry) for entry in engine.networks(label)]
    swarm_node = ""
    drivers = {network.driver for network in networks} | {session.network["driver"] for session in manifest.sessions}
    if agent_names.OVERLAY in drivers:
        swarm = engine.info()["Swarm"]
        swarm_node = swarm["NodeID"] if swarm["ControlAvailable"] else ""
    return Observed(
        containers=[agent_names.SeenContainer.from_list(entry) for entry in engine.containers(label)],
        networks=networks,
        keys=key_directory.kernels_with_keys(agent_names.ClusterPaths(cluster)),
        spools=last_words.spooled_sessions(cluster),
        swarm_node=swarm_node,
    )


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
        self._paths = agent_names.ClusterPaths(manifest.cluster)
        self._plan = plan_for(manifest, observed)
        self._differences = differences_of(self._plan, observed)

    def outcome(self) -> Outcome:
        plan = self._plan
        if plan.launches:
            key_directory.ensure_memory_backed()
        failures: dict[str, BaseException | None] = {}
        removals = len(plan.discarded_containers) + sum(1 + len(stop.containers) for stop in plan.stops)
        launches = sum(1 + len(launch.session.kernels) for launch in plan.launches)
        # In both pools a task only waits for tasks that were given to its pool before it, so no pool can choke.
        with _pool(removals) as removing, _pool(launches) as launching:
            self._discard(removing)
            stops = [(stop, self._begin_stop(stop, removing)) for stop in plan.stops]
            images = Images(self._engine, self._manifest.cluster)
            gangs = [GangLaunch(self._engine, images, self._manifest, launch, launching) for launch in plan.launches]
            for gang in gangs:
                failure = gang.failure()
                failures[gang.session.id] = failure
                if failure:
                    self._undo(gang.launch)
            for stop, ended in stops:
                failures[stop.session.id] = ended.result()
        for failure in failures.values():
            if failure is not None and not isinstance(failure, (LaunchError, EngineError)):
                raise failure  # a mistake of ours, told in full; its session is undone like any other
        for reference in images.pulled:
            self._differences.add("images", reference, ABSENT, "present")
        results = [_session_result(session, failures.get(session.id)) for session in self._manifest.sessions]
        return Outcome(results, _all_last_words(self._manifest.cluster, plan), self._differences)

    def _discard(self, pool: ThreadPoolExecutor) -> None:
        plan = self._plan
        list(pool.map(self._discard_container, plan.discarded_containers))
        list(pool.map(self._discard_network, plan.discarded_networks))
        for session_id, name in plan.discarded_keys:
            key_directory.remove_keys(self._paths.kernel_keys(session_id, name))
        for session_id in plan.discarded_spools:
            last_words.forget_words(self._manifest.cluster, session_id)

    def _discard_container(self, seen: SeenContainer) -> None:
        try:
            remove_container(self._engine, seen.id)
        except EngineError as error:
            self._warn(f"container {seen.name} cannot be removed: {error}")

    def _discard_network(self, seen: SeenNetwork) -> None:
        try:
            remove_network(self._engine, seen.id)
        except EngineError as error:
            self._warn(f"network {seen.name} cannot be removed: {error}")

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
        key_directory.remove_keys(self._paths.session_keys(stop.session.id))
        for network in stop.networks:
            # An overlay may still have kernels on other agents; what is left of it goes with a later run.
            self._discard_network(network)
        return None

    def _undo(self, launch: Launch) -> None:
        """Leave nothing of a gang whose launch failed, but for an overlay, which is not this host's alone."""
        session = launch.session
        labels = (agent_names.of_cluster(self._manifest.cluster), agent_names.of_session(session.id))
        for entry in self._engine.containers(*labels):
            self._discard_container(agent_names.SeenContainer.from_list(entry))
        key_directory.remove_keys(self._paths.session_keys(session.id))
        if session.network["driver"] != agent_names.OVERLAY:
            for network in map(agent_names.SeenNetwork.from_list, self._engine.networks(*labels)):
                self._discard_network(network)
        retract_launch(self._differences, launch)


def _pool(tasks: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, min(_MOST_THREADS, tasks)))


def _session_result(session: Session, failure: BaseException | None) -> dict[str, Any]:
    return {
        "id": session.id,
        "outcome": "failed" if failure else _OUTCOMES[session.desired],
        "error": str(failure) if failure else None,
        "permanent": isinstance(failure, LaunchError) and failure.permanent,
    }


def _all_last_words(cluster: str, plan: Plan) -> list[dict[str, Any]]:
    return [words for stop in plan.stops for words in last_words.spooled_words(cluster, stop.session.id)]
