"""Making one host match its manifest: observe, plan, act (docs/agent-contract.md)."""

from __future__ import annotations

import json
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from . import host_state, names
from .differences import ABSENT
from .engine import overlay_networks
from .engine.api import DESCRIPTION_PATIENCE_S, EngineApi, EngineError, EngineSilentError
from .engine.layer_limit import LayerLimits
from .gpus import fgpu_state, memory_limits
from .launch import end_signals, key_directory, last_words, notices
from .launch.gang_launch import GangLaunch, Images, check_launch
from .launch.gang_release import GangRelease
from .launch.gang_repair import reconnect
from .launch.host_ids import host_ids
from .launch.key_directory import HalfReleasedError
from .launch.launch_error import LaunchError, as_launch_error, first_failure, host_message
from .manifest import KEEP, LAUNCH, RELEASE, STOP
from .plan import Launch, Observed, lent_on, plan_for
from .plan_differences import NETWORKS, differences_of, retract_launch, retract_release, retract_repair
from .removals import Removals

if TYPE_CHECKING:
    from collections.abc import Callable

    from .differences import Differences
    from .launch.host_ids import HostIds
    from .manifest import Manifest, Session
    from .names import SeenContainer, SeenNetwork

_MOST_THREADS = 64
_LEAST_PATIENCE_S = 60
# An image's maker can have the engine or a kernel's first programs say more than an answer may hold.
_MOST_OF_AN_ERROR = 4_000
_OUTCOMES = {LAUNCH: "started", RELEASE: "released", KEEP: "kept", STOP: "stopped"}


class RefusedError(Exception):
    """The manifest is refused as a whole: nothing of it was begun. The message is one line for an operator."""


class StaleGenerationError(RefusedError):
    """The host has accepted a newer manifest."""

    def __init__(self, agent_generation: int) -> None:
        super().__init__(f"this agent has accepted generation {agent_generation} already: the manifest is out of date")
        self.agent_generation = agent_generation


class ForeignDatabaseError(RefusedError):
    """Containers run here by the manifest of another database, which this one does not continue."""

    def __init__(self) -> None:
        super().__init__(
            "another control node or database runs sessions of this cluster here: the manifest would end them"
        )


class Outcome(NamedTuple):
    """The outcome of a manifest.

    `sessions` lacks those of which only another look at the host can tell; `unclear` has a line for each of them.
    `leftovers` says what was to be removed and is still there, and why; None where nothing was to be done.
    `generation_before` is the newest that the host had accepted before, 0 where it had none; None where nothing was.
    """

    sessions: list[dict[str, Any]]
    last_words: list[dict[str, Any]]
    differences: Differences
    unclear: list[str]
    leftovers: list[dict[str, str]] | None = None
    generation_before: int | None = None


def converge(engine: EngineApi, manifest: Manifest, warn: Callable[[str], None]) -> Outcome:
    """Make the host match the manifest; `warn` gets leftovers that resist, and whatever else costs no session.

    What keeps one session from its state is that session's outcome. Raises RefusedError before anything is begun.
    """
    patience_s = manifest.start_timeout_s + manifest.stop_grace_s + _LEAST_PATIENCE_S
    with ExitStack() as stack:
        try:
            stack.enter_context(host_state.one_run_at_a_time(manifest.cluster, patience_s))
            accepted = _check_generation(manifest)
            if any(session.desired == LAUNCH for session in manifest.sessions):
                engine.expect_facts()
            observed = observe(engine, manifest)
            _check_database(manifest, observed)
            run = _Run(engine, manifest, observed, warn)
            if manifest.databases and manifest.databases[0] != host_state.read_database(manifest.cluster):
                host_state.write_database(manifest.cluster, manifest.databases[0])
            if accepted != manifest.generation:
                host_state.write_generation(manifest.cluster, manifest.generation)
        except EngineError as error:
            raise RefusedError(error.with_remedy()) from error
        except host_state.BusyError as error:
            raise RefusedError(str(error)) from error
        except OSError as error:
            raise RefusedError(f"this agent cannot keep its state: {host_message(error)}") from error
        _warn_of_a_keeper_that_cannot(manifest, observed, warn)
        return run.outcome()._replace(generation_before=accepted or 0)


def foresee(engine: EngineApi, manifest: Manifest, warn: Callable[[str], None]) -> Outcome:
    """Return what `converge` would do, having done nothing."""
    _check_generation(manifest)
    observed = observe(engine, manifest)
    _check_database(manifest, observed)
    _warn_of_a_keeper_that_cannot(manifest, observed, warn)
    plan = plan_for(manifest, observed)
    differences = differences_of(plan, observed)
    notices.add_differences(differences, notices.due_notices(manifest, observed.containers))
    end_signals.add_differences(differences, end_signals.due_signals(manifest, observed.containers))
    images = Images(engine, manifest.cluster)
    failures: dict[str, BaseException] = {}
    for launch in plan.launches:
        try:
            check_launch(manifest, launch, images)
        except (LaunchError, OSError) as error:
            failures[launch.session.id] = as_launch_error(error)
            retract_launch(differences, launch)
    for release in plan.releases:
        try:
            GangRelease(engine, manifest, release).check()
        except LaunchError as error:
            failures[release.session.id] = error
            retract_release(differences, release)
    answer = last_words.Answer(manifest.cluster)
    for stop in plan.stops:
        answer.takes(stop.session)
    foreseen = [_session_result(session, failures.get(session.id)) for session in manifest.sessions]
    return Outcome(foreseen, answer.words, differences, [])


def observe(engine: EngineApi, manifest: Manifest) -> Observed:
    cluster = manifest.cluster
    label = names.of_cluster(cluster)
    launched = {session.network["driver"] for session in manifest.sessions if session.desired == LAUNCH}
    swarm = {"manager": False}
    overlay_obstacle = ""
    if manifest.overlays is not None or names.OVERLAY in launched:
        swarm = overlay_networks.swarm_of(engine.facts())
    if names.OVERLAY in launched:
        overlay_obstacle = overlay_networks.obstacle(engine, swarm)
    containers = [names.SeenContainer.from_list(entry) for entry in engine.containers(label)]
    networks = [names.SeenNetwork.from_list(entry) for entry in engine.networks(label)]
    spare, left = _lent_on(engine, manifest, containers, networks)
    return Observed(
        containers=containers,
        networks=networks,
        keys=key_directory.kernels_with_keys(names.ClusterPaths(cluster)),
        spools=last_words.spooled_sessions(cluster),
        is_manager=swarm["manager"],
        overlay_obstacle=overlay_obstacle,
        spare_networks=spare,
        left_networks=left,
    )


def _lent_on(
    engine: EngineApi, manifest: Manifest, containers: list[SeenContainer], networks: list[SeenNetwork]
) -> tuple[list[str], list[str]]:
    """Return the networks that may be lent on, where one may be needed: without those that a stranger runs on."""
    if not any(session.is_lent_to and session.desired == LAUNCH for session in manifest.sessions):
        return [], []
    spare, left = lent_on(manifest, containers, networks)
    # All at once: nothing begins before.
    with _pool(len(spare) + len(left)) as pool:
        unused = {name for name, is_so in zip([*spare, *left], pool.map(engine.is_unused, [*spare, *left])) if is_so}
    return [name for name in spare if name in unused], [name for name in left if name in unused]


def _warn_of_a_keeper_that_cannot(manifest: Manifest, observed: Observed, warn: Callable[[str], None]) -> None:
    if manifest.overlays is not None and not observed.is_manager:
        warn("this agent is to keep the overlay networks, but is no manager of a swarm (roles/overlay_network)")


def _check_generation(manifest: Manifest) -> int | None:
    accepted = host_state.read_generation(manifest.cluster)
    if accepted is not None and accepted > manifest.generation:
        raise StaleGenerationError(accepted)
    return accepted


def _check_database(manifest: Manifest, observed: Observed) -> None:
    database = host_state.read_database(manifest.cluster)
    if manifest.databases and database is not None and database not in manifest.databases and observed.containers:
        raise ForeignDatabaseError


class _Run:
    def __init__(self, engine: EngineApi, manifest: Manifest, observed: Observed, warn: Callable[[str], None]) -> None:
        self._engine = engine
        self._manifest = manifest
        self._warn = warn
        self._cluster = manifest.cluster
        self._observed = observed
        self._plan = plan_for(manifest, observed)
        self._differences = differences_of(self._plan, observed)
        self._notices = notices.due_notices(manifest, observed.containers)
        notices.add_differences(self._differences, self._notices)
        self._signals = end_signals.due_signals(manifest, observed.containers)
        end_signals.add_differences(self._differences, self._signals)
        self._removals = Removals(engine, manifest, self._plan, self._differences, warn)

    def outcome(self) -> Outcome:
        plan = self._plan
        for notice in self._notices:
            if not self._done(f"notice of {notice.seen.name}", notices.deliver, self._engine, self._cluster, notice):
                self._differences.add(notices.NOTICES, notice.seen.name, notice.before, notice.before)
        for due in self._signals:
            if not self._done(f"the signal to {due.seen.name}", end_signals.deliver, self._engine, self._cluster, due):
                self._differences.add(end_signals.SIGNALS, due.seen.name, *(due.before_text,) * 2)
        removals = len(plan.discarded_containers) + sum(1 + len(stop.containers) for stop in plan.stops)
        begun = [launch.session for launch in plan.launches] + [release.session for release in plan.releases]
        launches = len(plan.missing_overlays) + len(plan.repairs)
        launches += sum(1 + len(session.kernels) for session in begun)
        # In both pools a task only waits for tasks that were given to its pool before it, so no pool can choke.
        with (
            host_ids(self._engine) as ids,
            _pool(removals + len(plan.discarded_overlays)) as removing,
            _pool(launches) as launching,
        ):
            self._removals.discard(removing)
            stops = self._removals.begin_stops(removing)
            failures = self._bring_up(launching, ids)
            for stop, ended in stops:
                failures[stop.session.id] = ended.result()
            self._removals.discard_overlays(removing)
        self._done("the driver's limits of GPU memory", self._limit_gpu_memory)
        sessions = self._manifest.sessions
        # The control groups of sessions that have nothing here any more go.
        self._removals.sweep({session.id for session in sessions if not _is_gone(session, failures.get(session.id))})
        words = self._last_words(failures)
        for stop in plan.stops:
            if (failure := failures[stop.session.id]) is not None:
                self._removals.leave(f"session {stop.session.id}", _line_of(failure))
        unclear = {key: str(error) for key, error in failures.items() if isinstance(error, HalfReleasedError)}
        for failure in failures.values():
            if failure is not None and not isinstance(failure, (LaunchError, EngineError, OSError, HalfReleasedError)):
                # A mistake of ours.
                self._warn("".join(traceback.format_exception(type(failure), failure, failure.__traceback__)))
        results = [_session_result(s, failures.get(s.id)) for s in sessions if s.id not in unclear]
        return Outcome(results, words, self._differences, sorted(unclear.values()), self._removals.leftovers())

    def _limit_gpu_memory(self) -> None:
        """Give shares the driver's own limits: with the pools' threads gone, this process may fork.

        Shares of kept kernels too: a visit may have been killed before it came to that, and the driver forgets a limit
        with the control group, which ends when a container is started anew.
        """
        sessions = [session for session in self._manifest.sessions if session.desired != STOP]
        launched = {
            names.container_name(session.id, kernel.name)
            for session in sessions
            if session.desired == LAUNCH
            for kernel in session.kernels
            if any(gpu["mem_bytes"] for gpu in kernel.spec["gpus"])
        }
        ids = {session.id for session in sessions}
        kept = {seen.name for seen in self._observed.containers if seen.has_share and seen.session_id in ids}
        found = [found for name in sorted(launched | kept) if (found := self._found(name))]
        memory_limits.enforce(memory_limits.shares_of(map(_gpus_of, found)), self._warn)

    def _found(self, name: str) -> dict[str, Any] | None:
        try:
            return self._engine.container(name, DESCRIPTION_PATIENCE_S)
        except EngineSilentError as error:
            self._warn(f"the driver's limits of GPU memory for {name}: {error}")
            return None
        except EngineError as error:
            if error.status == 404:  # its launch failed
                return None
            raise

    def _done(self, what: str, step: Callable[..., None], *arguments: object) -> bool:
        """Take a step that no session depends on. Warn if it fails; return whether it was done."""
        try:
            step(*arguments)
        except (EngineError, OSError) as error:
            self._warn(f"{what}: {error}")
            return False
        return True

    def _last_words(self, failures: dict[str, BaseException | None]) -> list[dict[str, Any]]:
        """Return what is spooled. Where it cannot be read or sent, the stop fails, so that it stays for another try."""
        answer = last_words.Answer(self._cluster)
        for stop in self._plan.stops:
            try:
                if not answer.takes(stop.session):
                    failures[stop.session.id] = OSError(f"last words of {stop.session.name} come with a later answer")
            except (OSError, ValueError) as error:
                failures[stop.session.id] = OSError(f"last words of {stop.session.name} cannot be read: {error}")
        return answer.words

    def _bring_up(self, pool: ThreadPoolExecutor, ids: HostIds) -> dict[str, BaseException | None]:
        """Make overlays, launch, release and repair; return by session why it failed, or None."""
        plan, manifest = self._plan, self._manifest
        overlays = {
            overlay.name: pool.submit(overlay_networks.make_overlay, self._engine, manifest.cluster, overlay)
            for overlay in plan.missing_overlays
        }
        images, layers = Images(self._engine, manifest.cluster), LayerLimits(self._engine)
        spare = list(plan.spare_networks)
        gangs = [
            GangLaunch(
                self._engine,
                images,
                layers,
                ids,
                manifest,
                launch,
                pool,
                overlays.get(launch.session.network["name"]),
                spare,
            )
            for launch in self._prepared(plan.launches)
        ]
        releases = [GangRelease(self._engine, manifest, release) for release in plan.releases]
        for gang in releases:
            gang.begin(pool)
        repairs = [
            (
                repair,
                pool.submit(
                    reconnect, self._engine, manifest, repair, overlays.get(repair.session.network["name"]), spare
                ),
            )
            for repair in plan.repairs
        ]
        # Each in a thread of its own: a gang that is slow to fail must not hold up the others' commands.
        with _pool(len(gangs) + len(releases)) as settling:
            settled = [(gang.session.id, settling.submit(self._settle_launch, gang)) for gang in gangs]
            settled += [(gang.session.id, settling.submit(self._settle_release, gang)) for gang in releases]
        for name, made in overlays.items():
            self._settle_overlay(name, made.exception())
        failures = {session_id: failure.exception() or failure.result() for session_id, failure in settled}
        for repair, connected in repairs:
            failures[repair.session.id] = first_failure([connected])
            if failures[repair.session.id] is not None:
                retract_repair(self._differences, repair)
        return failures

    def _prepared(self, launches: list[Launch]) -> list[Launch]:
        """Make the places in memory that launches need; a launch whose place cannot be made gets the obstacle."""
        obstacles = ""
        gpu_obstacles = ""
        if launches:
            obstacles = _obstacle(key_directory.ensure_memory_backed)
        if any(fgpu_state.is_needed(kernel) for launch in launches for kernel in launch.missing):
            gpu_obstacles = _obstacle(fgpu_state.ensure_root)
        prepared = []
        for launch in launches:
            needs_gpu_state = any(fgpu_state.is_needed(kernel) for kernel in launch.missing)
            obstacle = launch.obstacle or obstacles or (gpu_obstacles if needs_gpu_state else "")
            prepared.append(launch._replace(obstacle=obstacle))
        return prepared

    def _settle_launch(self, gang: GangLaunch) -> BaseException | None:
        failure = gang.failure()
        if failure is not None and not isinstance(failure, HalfReleasedError):
            self._removals.undo(gang.launch)
        return failure

    def _settle_release(self, gang: GangRelease) -> BaseException | None:
        failure = gang.failure()
        if failure is not None and not isinstance(failure, HalfReleasedError):
            retract_release(self._differences, gang.release)
        return failure

    def _settle_overlay(self, name: str, failure: BaseException | None) -> None:
        if failure is not None:
            self._warn(str(failure))
            self._differences.add(NETWORKS, name, ABSENT, ABSENT)


def _gpus_of(found: dict[str, Any]) -> dict[str, Any]:
    gpus = json.loads(found["Config"]["Labels"].get(names.LABEL_GPUS, "[]"))
    return {"container_id": found["Id"], "pid": found["State"]["Pid"], "gpus": gpus}


def _is_gone(session: Session, failure: BaseException | None) -> bool:
    """Return whether a session of the manifest has nothing here after the run: it was stopped, or its launch undone."""
    if session.desired == STOP:
        return failure is None
    return session.desired == LAUNCH and failure is not None and not isinstance(failure, HalfReleasedError)


def _pool(tasks: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, min(_MOST_THREADS, tasks)))


def _obstacle(make: Callable[[], None]) -> str:
    """Return why a place in memory cannot be made; empty if it is made."""
    try:
        make()
    except OSError as error:
        return f"on this agent: {host_message(error)}"
    return ""


def _session_result(session: Session, failure: BaseException | None) -> dict[str, Any]:
    return {
        "id": session.id,
        "outcome": "failed" if failure is not None else _outcome_of(session),
        "error": None if failure is None else _line_of(failure),
        "permanent": isinstance(failure, LaunchError) and failure.permanent,
    }


def _line_of(failure: BaseException) -> str:
    if isinstance(failure, OSError):
        words = f"on this agent: {host_message(failure)}"
    elif isinstance(failure, (LaunchError, EngineError)):
        words = str(failure)
    else:
        words = f"a mistake of Muster's on this agent: {type(failure).__name__}: {failure}"
    return " ".join(words.split())[:_MOST_OF_AN_ERROR]


def _outcome_of(session: Session) -> str:
    return _OUTCOMES[RELEASE if session.release else session.desired]
