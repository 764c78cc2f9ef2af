"""Simulated hosts: each keeps what a host keeps, and does with a manifest what docs/agent-contract.md says.

What it decides to do is the agent's own code (`plan_for`). What it does takes virtual time, so that a fault can strike
between any two steps.
"""

import base64
import gzip
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, Protocol

from muster.contract.manifest import Manifest
from tests.modules.agent_code import agent_manifest, agent_names, agent_plan
from tests.simulation.timeline import Chance, Timeline

Steps = Generator[float, None, dict[str, Any]]
"""What a module does: yields the seconds until its next step, and returns its result."""

_EPOCH = 1_763_724_000
_LOG = base64.b64encode(gzip.compress(b"log\n", mtime=0)).decode()
_KILLED = 137
_TERMINATED = 143
_DIED_WITH_ITS_HOST = 255
_OVERLAY_PATIENCE_S = 20.0
_A_MOMENT_S = 60.0
_REPAIR_FAILS = 0.3
_NO_ENGINE = "the Docker engine does not answer; see `systemctl status docker`"
_WELL = ("", False)
# Only another look at the host can tell what became of the session.
_UNCLEAR = None


class ModuleFailedError(Exception):
    """The module ended with a message, and with what it `said` of the sessions that it had worked on."""

    def __init__(self, message: str, **said: Any) -> None:
        super().__init__(message)
        self.said = said


Done = Callable[[dict[str, Any] | ModuleFailedError | None], None]
"""Gets a module's result, how it failed, or None if it went with its host."""


@dataclass(eq=False)
class Container:
    """A kernel's container, as its engine keeps it."""

    number: int
    session_id: str
    kernel_id: str
    kernel_name: str
    generation: int
    network: str
    cpu_milli: int
    mem_bytes: int
    gpus: Sequence[Mapping[str, Any]]
    state: str = "created"
    exit_code: int | None = None
    oom_killed: bool = False
    started_at: float | None = None
    finished_at: float | None = None


@dataclass(frozen=True)
class Network:
    """A network of one session's launch."""

    name: str
    session_id: str
    generation: int
    driver: str


class Witness(Protocol):
    """What is told of all that really happens on hosts."""

    def container_starts(self, host: "Host", container: Container) -> None: ...

    def command_begins(self, host: "Host", container: Container) -> None: ...

    def container_ends(self, host: "Host", container: Container, cause: str) -> None: ...

    def launch_fails(self, host: "Host", session_id: str, *, permanent: bool) -> None: ...

    def is_removed(self, host: "Host", container: Container) -> None: ...


@dataclass(eq=False)
class Action:
    """A module under way; `locks` says whether it holds the host's lock, as `agent_converge` does."""

    steps: Steps
    done: Done
    locks: bool
    is_over: bool = False


@dataclass(eq=False)
class Host:
    """One host. `keys` say, by session and kernel name, which generation was released; a reboot loses them.

    `troubles` counts what keeps it from being in order at present, `well_since` is when that last ended.
    """

    id: str
    hardware: dict[str, Any]
    inventory: Mapping[str, Any]
    timeline: Timeline
    chance: Chance
    witness: Witness
    overlays: dict[str, Network]
    peers: Callable[[], Sequence["Host"]]
    is_up: bool = True
    is_cut: bool = False
    engine_runs: bool = True
    disk_is_full: bool = False
    launches_fail: bool = False
    stops_fail: bool = False
    hangs_until: float = 0.0
    next_launches: list[str] = field(default_factory=list)
    answers: deque[tuple[str, float]] = field(default_factory=deque)
    pulls_fail: str = ""
    troubles: int = 0
    well_since: float = -1e9
    boots: int = 1
    generation: int | None = None
    keys: dict[str, dict[str, int]] = field(default_factory=dict)
    spool: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    containers: dict[tuple[str, str], Container] = field(default_factory=dict)
    networks: dict[str, Network] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)
    locked_by: Action | None = None
    waiting: deque[Action] = field(default_factory=deque)
    _numbers: Any = field(default_factory=lambda: count(1))

    @property
    def is_reachable(self) -> bool:
        return self.is_up and not self.is_cut

    @property
    def was_in_trouble(self) -> bool:
        """Return whether it is out of order by itself, or was a moment ago."""
        return self.troubles > 0 or self.timeline.now - self.well_since < _A_MOMENT_S

    @property
    def manages_overlays(self) -> bool:
        return bool(self.hardware["swarm"]["manager"])

    # What the control node has it do

    def observe(self, done: Done) -> Action:
        """Run `agent_report`."""
        return self._begin(Action(self._observing(), done, locks=False))

    def converge(self, manifest: Manifest, done: Done) -> Action:
        """Run `agent_converge`, once no other run of it holds the lock."""
        return self._begin(Action(self._converging(manifest), done, locks=True))

    def _begin(self, action: Action) -> Action:
        if action.locks and self.locked_by is not None:
            self.waiting.append(action)
            return action
        if action.locks:
            self.locked_by = action
        self.actions.append(action)
        self._go_on(action)
        return action

    def _go_on(self, action: Action) -> None:
        if action.is_over:
            return
        if self.timeline.now < self.hangs_until:
            self.timeline.after(self.hangs_until - self.timeline.now, lambda: self._go_on(action))
            return
        try:
            delay = next(action.steps)
        except StopIteration as stop:
            self.ends(action, stop.value)
        except ModuleFailedError as error:
            self.ends(action, error)
        else:
            self.timeline.after(delay, lambda: self._go_on(action))

    def ends(self, action: Action, result: dict[str, Any] | ModuleFailedError | None) -> None:
        """End a module, by itself or by another's hand; the next one gets the lock."""
        if action.is_over:
            return
        action.is_over = True
        action.steps.close()
        if action in self.actions:
            self.actions.remove(action)
        if action in self.waiting:
            self.waiting.remove(action)
        if self.locked_by is action:
            self.locked_by = None
            if self.waiting:
                following = self.waiting.popleft()
                self.locked_by = following
                self.actions.append(following)
                self.timeline.after(0.05, lambda: self._go_on(following))
        action.done(result)

    # What happens to it

    def goes_down(self) -> None:
        """Lose power: what runs ends, and what is in memory is gone."""
        self.is_up = False
        for action in [*self.actions, *self.waiting]:
            self.ends(action, None)
        self.keys.clear()
        self._all_end(_DIED_WITH_ITS_HOST, "reboot")

    def comes_up(self) -> None:
        self.is_up, self.engine_runs = True, True
        self.boots += 1

    def engine_stops(self) -> None:
        """End the engine, and with it the containers."""
        self.engine_runs = False
        self._all_end(_KILLED, "engine")

    def _all_end(self, exit_code: int, cause: str) -> None:
        for container in list(self.containers.values()):
            if container.state == "running":
                self.container_ends(container, exit_code, cause)

    def container_ends(self, container: Container, exit_code: int, cause: str, *, oom_killed: bool = False) -> None:
        container.state, container.exit_code, container.oom_killed = "exited", exit_code, oom_killed
        container.finished_at = self.timeline.now
        self.witness.container_ends(self, container, cause)

    def container_vanishes(self, container: Container) -> None:
        """Remove it by a hand that is not the control node's."""
        if container.state == "running":
            self.container_ends(container, _KILLED, "vanished")
        self.containers.pop((container.session_id, container.kernel_name), None)

    def running(self) -> list[Container]:
        return [container for container in self.containers.values() if container.state == "running"]

    def is_released(self, container: Container) -> bool:
        return self.keys.get(container.session_id, {}).get(container.kernel_name) == container.generation

    def holds(self) -> list[str]:
        """Return what of sessions is here, for people."""
        return [
            *(f"container {c.kernel_name} of {c.session_id[:8]} ({c.state})" for c in self.containers.values()),
            *(f"network {network.name}" for network in self.networks.values()),
            *(f"keys of {session_id[:8]}" for session_id in self.keys),
            *(f"last words of {session_id[:8]}" for session_id in self.spool),
        ]

    # The modules

    def _observing(self) -> Steps:
        yield self.chance.seconds(0.2, 0.8)
        if not self.engine_runs:
            raise ModuleFailedError(_NO_ENGINE)
        return {"report": self._report()}

    def _converging(self, manifest: Manifest) -> Steps:
        wanted = agent_manifest.parse_manifest(manifest.model_dump(mode="json"))
        yield self.chance.seconds(0.2, 0.8)
        plan = self._accepted(wanted)
        self._discard(plan)
        for overlay in plan.missing_overlays:
            network = Network(overlay.name, overlay.session_id, int(overlay.generation), "overlay")
            self.overlays.setdefault(overlay.name, network)
        yield self.chance.seconds(0.05, 0.3)
        failures: dict[str, tuple[str, bool] | None] = {}
        for stop in plan.stops:
            self._terminate(stop)
        for launch in plan.launches:
            yield from self._launch(launch, failures)
        for release in plan.releases:
            yield from self._release(release, failures)
        for repair in plan.repairs:
            yield from self._repair(repair, failures)
        for stop in plan.stops:
            yield self.chance.seconds(0.05, 0.5)
            self._end_stop(stop, failures)
        self._discard_overlays(plan)
        yield self.chance.seconds(0.1, 0.4)
        said = {
            "sessions": [
                self._outcome(session, failures.get(session.id))
                for session in wanted.sessions
                if failures.get(session.id, _WELL) is not _UNCLEAR
            ],
            "last_words": [word for stop in plan.stops for word in self.spool.get(stop.session.id, {}).values()],
        }
        if _UNCLEAR in failures.values() or not self.engine_runs:
            raise ModuleFailedError(_NO_ENGINE, **said)
        return {**said, "report": self._report()}

    def _accepted(self, wanted: Any) -> Any:
        """Return the plan for this manifest; raise ModuleFailedError where it is refused as a whole."""
        if not self.engine_runs:
            raise ModuleFailedError(_NO_ENGINE, nothing_begun=True)
        if self.generation is not None and self.generation > wanted.generation:
            raise ModuleFailedError(f"this agent has accepted generation {self.generation}", nothing_begun=True)
        if self.disk_is_full and self.generation != wanted.generation:
            raise ModuleFailedError("this agent cannot keep its state: no space left on device", nothing_begun=True)
        self.generation = wanted.generation
        return agent_plan.plan_for(wanted, self._observed(wanted))

    def _observed(self, wanted: Any) -> Any:
        names = agent_names
        present = [*self.networks.values(), *(self.overlays.values() if self.manages_overlays else ())]
        return agent_plan.Observed(
            containers=[
                names.SeenContainer(
                    f"c{c.number}",
                    names.container_name(c.session_id, c.kernel_name),
                    c.session_id,
                    c.kernel_id,
                    c.kernel_name,
                    str(c.generation),
                    c.state,
                    frozenset({c.network} if self._is_joined(c) else ()),
                )
                for c in self.containers.values()
            ],
            networks=[names.SeenNetwork(n.name, n.name, n.session_id, str(n.generation), n.driver) for n in present],
            keys={
                session_id: {name: str(generation or "") for name, generation in kernels.items()}
                for session_id, kernels in self.keys.items()
            },
            spools=set(self.spool),
            is_manager=self.manages_overlays and wanted.overlays is not None,
            overlay_obstacle="",
        )

    def _discard(self, plan: Any) -> None:
        for seen in plan.discarded_containers:
            self._remove(self.containers[seen.session_id, seen.kernel_name])
        for seen in plan.discarded_networks:
            del self.networks[seen.name]
        for session_id, name in plan.discarded_keys:
            if name:
                del self.keys[session_id][name]
            else:
                del self.keys[session_id]
        for session_id in plan.discarded_spools:
            del self.spool[session_id]

    def _discard_overlays(self, plan: Any) -> None:
        attached = {c.network for host in self.peers() for c in host.containers.values() if c.state == "running"}
        for seen in plan.discarded_overlays:
            if seen.name not in attached:
                self.overlays.pop(seen.name, None)

    def _remove(self, container: Container) -> None:
        if container.state == "running":
            self.witness.is_removed(self, container)
            self.container_ends(container, _KILLED, "removed")
        del self.containers[container.session_id, container.kernel_name]

    def _of_session(self, session_id: str) -> list[Container]:
        return [container for container in self.containers.values() if container.session_id == session_id]

    def _launch(self, launch: Any, failures: dict[str, tuple[str, bool] | None]) -> Generator[float, None, None]:
        session = launch.session
        failure = self._obstacle(launch)
        if failure is None:
            failure = yield from self._started(launch)
        if not self.engine_runs:
            failures[session.id] = _UNCLEAR
        elif failure is not None:
            failures[session.id] = failure
            self.witness.launch_fails(self, session.id, permanent=failure[1])
            self._undo(session)
        elif session.release:
            yield from self._let_go(session)

    def _started(self, launch: Any) -> Generator[float, None, tuple[str, bool] | None]:
        """Make and start what is missing; return why that failed, if it did."""
        session = launch.session
        network = session.network["name"]
        if session.network["driver"] == "bridge":
            self.networks[network] = Network(network, session.id, int(session.generation), "bridge")
        for kernel in launch.missing:
            self.keys.setdefault(session.id, {})[kernel.name] = 0
            yield self.chance.seconds(0.05, 0.3)
            if not self.engine_runs:
                return None
            resources = kernel.spec["resources"]
            self.containers[session.id, kernel.name] = Container(
                next(self._numbers),
                session.id,
                kernel.id,
                kernel.name,
                int(session.generation),
                network,
                resources["cpu_milli"],
                resources["mem_bytes"],
                kernel.spec["gpus"],
            )
        give_up_at = self.timeline.now + _OVERLAY_PATIENCE_S
        while session.network["driver"] == "overlay" and network not in self.overlays:
            if self.timeline.now > give_up_at:
                return f"overlay network {network} is not there", False
            yield 0.5
        if not self.engine_runs:
            return None
        for container in self._of_session(session.id):
            if container.state == "created":
                container.state, container.started_at = "running", self.timeline.now
                self.witness.container_starts(self, container)
        yield self.chance.seconds(0.2, 1.5)
        return self._not_living(session)

    def _obstacle(self, launch: Any) -> tuple[str, bool] | None:
        if self.next_launches:
            kind = self.next_launches.pop(0)
            return f"main1: it cannot be started ({kind})", kind == "permanent"
        if self.launches_fail:
            return "main1: the engine of this agent cannot give devices to containers", False
        if self.disk_is_full and launch.missing:
            return "main1: no space left on device", False
        return None

    def _not_living(self, session: Any) -> tuple[str, bool] | None:
        for kernel in session.kernels:
            container = self.containers.get((session.id, kernel.name))
            if container is None:
                return f"{kernel.name} has vanished", False
            if container.state != "running" and not self.is_released(container):
                return f"{kernel.name} ended with exit code {container.exit_code} before it could be reached", False
        return None

    def _undo(self, session: Any) -> None:
        for container in self._of_session(session.id):
            self._remove(container)
        self.keys.pop(session.id, None)
        self.networks.pop(session.network["name"], None)

    def _release(self, release: Any, failures: dict[str, tuple[str, bool] | None]) -> Generator[float, None, None]:
        yield self.chance.seconds(0.1, 0.5)
        for kernel, seen in release.waiting:
            container = self.containers.get((release.session.id, kernel.name)) if seen else None
            if container is None or container.state != "running":
                failures[release.session.id] = f"{kernel.name} ended before it was released", False
                return
        yield from self._let_go(release.session)

    def _repair(self, repair: Any, failures: dict[str, tuple[str, bool] | None]) -> Generator[float, None, None]:
        """Put kernels back on their network, which may be made again."""
        yield self.chance.seconds(0.1, 0.5)
        session = repair.session
        if self.chance.happens(_REPAIR_FAILS):
            failures[session.id] = f"network {session.network['name']} cannot be made again", False
        elif repair.network_missing:
            name = session.network["name"]
            self.networks[name] = Network(name, session.id, int(session.generation), "bridge")

    def _let_go(self, session: Any) -> Generator[float, None, None]:
        for kernel in session.kernels:
            container = self.containers.get((session.id, kernel.name))
            if container is None or self.is_released(container):
                continue
            self.keys.setdefault(session.id, {})[kernel.name] = container.generation
            if container.state == "running":
                self.witness.command_begins(self, container)
            yield 0.01

    def _terminate(self, stop: Any) -> None:
        if self.stops_fail:
            return
        for container in self._of_session(stop.session.id):
            if container.state == "running":
                self.container_ends(container, _TERMINATED, "stopped")

    def _end_stop(self, stop: Any, failures: dict[str, tuple[str, bool] | None]) -> None:
        if not self.engine_runs:
            failures[stop.session.id] = _NO_ENGINE, False
            return
        if self.stops_fail or self.disk_is_full:
            failures[stop.session.id] = "[Errno 28] No space left on device", False
            return
        for container in self._of_session(stop.session.id):
            self.spool.setdefault(stop.session.id, {})[container.kernel_name] = self._last_words(container)
            self._remove(container)
        self.keys.pop(stop.session.id, None)
        for seen in stop.networks:
            self.networks.pop(seen.name, None)

    def _last_words(self, container: Container) -> dict[str, Any]:
        return {
            "session_id": container.session_id,
            "kernel_id": container.kernel_id,
            "name": container.kernel_name,
            "exit_code": container.exit_code,
            "oom_killed": container.oom_killed,
            "started_at": _moment(container.started_at),
            "finished_at": _moment(container.finished_at),
            "log_gz_b64": _LOG,
            "log_truncated": False,
            "use": None,
        }

    @staticmethod
    def _outcome(session: Any, failure: tuple[str, bool] | None) -> dict[str, Any]:
        done = {"release": "released", "keep": "kept", "stop": "stopped", "launch": "started"}[session.desired]
        if failure:
            return {"id": session.id, "outcome": "failed", "error": failure[0], "permanent": failure[1]}
        outcome = "released" if session.release else done
        return {"id": session.id, "outcome": outcome, "error": None, "permanent": False}

    def _report(self) -> dict[str, Any]:
        networks = [*self.networks.values(), *(self.overlays.values() if self.manages_overlays else ())]
        return {
            **self.hardware,
            "boot_id": f"boot-{self.boots}",
            "generation": self.generation,
            "spools": sorted(self.spool),
            "kernels": [self._seen(container) for container in self.containers.values()],
            "networks": [
                {"name": n.name, "session_id": n.session_id, "driver": n.driver, "generation": n.generation}
                for n in networks
            ],
        }

    def _is_joined(self, container: Container) -> bool:
        return container.network in self.networks or container.network in self.overlays

    def _seen(self, container: Container) -> dict[str, Any]:
        lives = container.state == "running"
        is_joined = self._is_joined(container)
        return {
            "kernel_id": container.kernel_id,
            "session_id": container.session_id,
            "name": container.kernel_name,
            "generation": container.generation,
            "container_id": f"c{container.number}",
            "state": container.state,
            "released": self.is_released(container),
            "exit_code": container.exit_code,
            "oom_killed": container.oom_killed,
            "started_at": _moment(container.started_at),
            "finished_at": _moment(container.finished_at),
            "address": "10.1.2.3" if lives and is_joined else None,
            "ssh_port": 49153 if lives and is_joined and container.kernel_name == "main1" else None,
            "gpus": [{**gpu, "used_bytes": 0} for gpu in container.gpus],
            "apps": {},
            "use": None,
            "notice": None,
        }


def _moment(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(_EPOCH + at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
