"""The modules that run on simulated hosts: they do with a manifest what docs/agent-contract.md says.

What they decide to do is the agents' own code (`plan_for`). What they do takes virtual time, so that a fault can strike
between any two steps.
"""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from muster.contract.manifest import Manifest
from tests.modules.agent_code import agent_manifest, agent_names, agent_plan
from tests.simulated.hosts import holds_image
from tests.simulation.containers import Container, ModuleFailedError, Network
from tests.simulation.host_reports import is_joined, last_words, networks, report

if TYPE_CHECKING:
    from tests.simulation.hosts import Host

Steps = Generator[float, None, dict[str, Any]]
"""What a module does: yields the seconds until its next step, and returns its result."""
Failures = dict[str, tuple[str, bool] | None]
"""By session id, why it failed and whether a retry cannot help; None where it is unclear what became of it."""

_KILLED = 137
_TERMINATED = 143
_OVERLAY_PATIENCE_S = 20.0
_REPAIR_FAILS = 0.3
_NO_ENGINE = "the Docker engine does not answer; see `systemctl status docker`"
_TOO_LATE = ("this agent would begin it too late", False)
_WELL = ("", False)
_UNCLEAR = None


class Modules:
    """The modules that can be run on a host."""

    def __init__(self, host: "Host") -> None:
        self._host = host
        self._leftovers: list[str] = []
        self._begin_by_s: int | None = None

    def observing(self) -> Steps:
        yield self._host.chance.seconds(0.2, 0.8)
        if not self._host.engine_runs:
            raise ModuleFailedError(_NO_ENGINE)
        return {"report": report(self._host, None)}

    def converging(self, manifest: Manifest) -> Steps:
        wanted = agent_manifest.parse_manifest(manifest.model_dump(mode="json"))
        self._begin_by_s = wanted.begin_by_s
        yield self._host.chance.seconds(0.2, 0.8)
        before = self._host.generation or 0
        plan = self._accepted(wanted)
        self._discard(plan)
        for overlay in plan.missing_overlays:
            network = Network(overlay.name, overlay.session_id, int(overlay.generation), "overlay")
            self._host.overlays.setdefault(overlay.name, network)
        yield self._host.chance.seconds(0.05, 0.3)
        failures: Failures = {}
        for session in wanted.sessions:
            self._give_notice(session)
            self._send_signal(session)
        for stop in plan.stops:
            self._terminate(stop)
        for launch in plan.launches:
            yield from self._launch(launch, failures)
        for release in plan.releases:
            yield from self._release(release, failures)
        for repair in plan.repairs:
            yield from self._repair(repair, failures)
        for stop in plan.stops:
            yield self._host.chance.seconds(0.05, 0.5)
            self._end_stop(stop, failures)
        self._discard_overlays(plan)
        yield self._host.chance.seconds(0.1, 0.4)
        said = {
            "sessions": [
                self._outcome(session, failures.get(session.id))
                for session in wanted.sessions
                if failures.get(session.id, _WELL) is not _UNCLEAR
            ],
            "last_words": [word for stop in plan.stops for word in self._spooled(stop.session)],
        }
        if _UNCLEAR in failures.values() or not self._host.engine_runs:
            raise ModuleFailedError(_NO_ENGINE, **said)
        return {**said, "report": {**report(self._host, self._leftovers), "generation_before": before}}

    def _accepted(self, wanted: Any) -> Any:
        """Return the plan for this manifest; raise ModuleFailedError where it is refused as a whole."""
        if refusal := self._refusal(wanted):
            for session in wanted.sessions:
                if session.desired == agent_manifest.LAUNCH:
                    self._host.witness.launch_fails(self._host, session.id, permanent=False)
            raise ModuleFailedError(refusal, nothing_begun=True)
        self._host.accepts(wanted.generation, wanted.databases)
        return agent_plan.plan_for(wanted, self._observed(wanted))

    def _refusal(self, wanted: Any) -> str:
        accepted = self._host.generation
        if not self._host.engine_runs:
            return _NO_ENGINE
        if accepted is not None and accepted > wanted.generation:
            return f"this agent has accepted generation {accepted} already: the manifest is out of date"
        if wanted.databases and self._host.containers and self._host.database not in {None, *wanted.databases}:
            return "another control node or database runs sessions here"
        if self._host.disk_is_full and accepted != wanted.generation:
            return "this agent cannot keep its state: no space left on device"
        return ""

    def _observed(self, wanted: Any) -> Any:
        names = agent_names
        containers = [
            names.SeenContainer(
                f"c{c.number}",
                names.container_name(c.session_id, c.kernel_name),
                c.session_id,
                c.kernel_id,
                c.kernel_name,
                str(c.generation),
                c.state,
                frozenset({c.network} if is_joined(self._host, c) else ()),
            )
            for c in self._host.containers.values()
        ]
        nets = [
            names.SeenNetwork(n.name, n.name, n.session_id, str(n.generation), n.driver) for n in networks(self._host)
        ]
        spare, left = agent_plan.lent_on(wanted, containers, nets)
        return agent_plan.Observed(
            containers=containers,
            networks=nets,
            keys={
                session_id: {name: str(generation or "") for name, generation in kernels.items()}
                for session_id, kernels in self._host.keys.items()
            },
            spools=set(self._host.spool),
            is_manager=self._host.manages_overlays and wanted.overlays is not None,
            overlay_obstacle="",
            spare_networks=spare,
            left_networks=left,
        )

    def _discard(self, plan: Any) -> None:
        for seen in plan.discarded_containers:
            self._remove(self._host.containers[seen.session_id, seen.kernel_name])
        for seen in plan.discarded_networks:
            if self._goes(f"network {seen.name}"):
                del self._host.networks[seen.name]
        if plan.discarded_containers:
            self._may_die()
        for session_id, name in plan.discarded_keys:
            if not self._goes(f"files of session {session_id}"):
                continue
            if name:
                del self._host.keys[session_id][name]
            else:
                del self._host.keys[session_id]
        for session_id in plan.discarded_spools:
            if self._goes(f"last words of session {session_id}"):
                del self._host.spool[session_id]

    def _may_die(self) -> None:
        """Die where that is to happen: containers are gone, and their files are not."""
        if self._host.dies_removing:
            self._host.dies_removing -= 1
            raise ModuleFailedError("MODULE FAILURE: it was killed")

    def _goes(self, what: str) -> bool:
        """Return whether the host lets go of a thing; what it does not is a leftover."""
        goes = not self._host.removals_fail or (self._host.removals_fail == "files" and not what.startswith("files"))
        if not goes:
            self._leftovers.append(what)
        return goes

    def _discard_overlays(self, plan: Any) -> None:
        attached = {c.network for host in self._host.peers() for c in host.containers.values() if c.state == "running"}
        for seen in plan.discarded_overlays:
            if seen.name in attached:
                self._leftovers.append(f"network {seen.name}")
            elif self._goes(f"network {seen.name}"):
                self._host.overlays.pop(seen.name, None)

    def _remove(self, container: Container) -> None:
        if container.state == "running":
            self._host.witness.is_removed(self._host, container)
            self._host.container_ends(container, _KILLED, "removed")
        if self._goes(f"container {container.number}"):
            del self._host.containers[container.session_id, container.kernel_name]

    def _of_session(self, session_id: str) -> list[Container]:
        return [container for container in self._host.containers.values() if container.session_id == session_id]

    def _launch(self, launch: Any, failures: Failures) -> Generator[float, None, None]:
        session = launch.session
        for image in sorted({kernel.spec["image"] for kernel in launch.missing}):
            if not holds_image(self._host.hardware, image):
                # No failure of the launch or of this host, unless it was pulled, and no report has shown it since.
                if image in self._host.pulled:
                    self._host.witness.launch_fails(self._host, session.id, permanent=False)
                failures[session.id] = f"image {image} is not on this agent", False
                self._undo(session)
                return
        failure = self._obstacle(launch)
        if failure is None:
            failure = yield from self._started(launch)
        if failure is None and session.release and self._is_too_late(session):
            failure = _TOO_LATE
        if not self._host.engine_runs:
            failures[session.id] = _UNCLEAR
        elif failure is not None:
            failures[session.id] = failure
            self._host.witness.launch_fails(self._host, session.id, permanent=failure[1])
            self._undo(session)
        elif session.release:
            yield from self._let_go(session)

    def _started(self, launch: Any) -> Generator[float, None, tuple[str, bool] | None]:
        """Make and start what is missing; return why that failed, if it did."""
        session = launch.session
        network = session.network["name"]
        if session.network["driver"] == "bridge":
            self._make_network(session)
        for kernel in launch.missing:
            self._host.keys.setdefault(session.id, {})[kernel.name] = 0
            yield self._host.chance.seconds(0.05, 0.3)
            if not self._host.engine_runs:
                return None
            if (session.id, kernel.name) in self._host.containers:
                return f"{kernel.name}: a container of an earlier launch has its name", False
            resources = kernel.spec["resources"]
            self._host.containers[session.id, kernel.name] = Container(
                next(self._host.numbers),
                session.id,
                kernel.id,
                kernel.name,
                int(session.generation),
                kernel.spec["image"],
                network,
                resources["cpu_milli"],
                resources["mem_bytes"],
                kernel.spec["gpus"],
                session.public_key,
            )
        return (yield from self._up(session))

    def _up(self, session: Any) -> Generator[float, None, tuple[str, bool] | None]:
        """Start the containers once their network is there; return why that failed, if it did."""
        network = session.network["name"]
        give_up_at = self._host.timeline.now + _OVERLAY_PATIENCE_S
        while session.network["driver"] == "overlay" and network not in self._host.overlays:
            if self._host.timeline.now > give_up_at:
                return f"overlay network {network} is not there", False
            yield 0.5
        if not self._host.engine_runs:
            return None
        if network not in self._host.networks and network not in self._host.overlays:
            return f"network {network} not found", False
        for container in self._of_session(session.id):
            if container.state == "created" and container.generation == int(session.generation):
                container.state, container.started_at = "running", self._host.timeline.now
                container.started_clock = self._host.clock
                self._host.witness.container_starts(self._host, container)
        yield self._host.chance.seconds(0.2, 1.5)
        return self._not_living(session)

    def _obstacle(self, launch: Any) -> tuple[str, bool] | None:
        if self._host.next_launches:
            kind = self._host.next_launches.pop(0)
            return f"main1: it cannot be started ({kind})", kind == "permanent"
        if self._host.launches_fail:
            return "main1: the engine of this agent cannot give devices to containers", False
        there = {gpu["uuid"] for gpu in self._host.hardware["gpus"]}
        for kernel in launch.missing:
            if missing := {gpu["uuid"] for gpu in kernel.spec["gpus"]} - there:
                return f"{kernel.name}: unknown device {min(missing)}", False
        if self._host.disk_is_full and launch.missing:
            return "main1: no space left on device", False
        return None

    def _not_living(self, session: Any) -> tuple[str, bool] | None:
        for kernel in session.kernels:
            container = self._host.containers.get((session.id, kernel.name))
            if container is None:
                return f"{kernel.name} has vanished", False
            if container.state != "running" and not self._host.is_released(container):
                return f"{kernel.name} ended with exit code {container.exit_code} before it could be reached", False
        return None

    def _undo(self, session: Any) -> None:
        for container in self._of_session(session.id):
            self._remove(container)
        self._may_die()
        if self._goes(f"files of session {session.id}"):
            self._host.keys.pop(session.id, None)
        name = session.network["name"]
        if name in self._host.networks and not agent_names.is_lent(name) and self._goes(f"network {name}"):
            del self._host.networks[name]

    def _make_network(self, session: Any) -> None:
        name = session.network["name"]
        owner, generation = ("", 0) if agent_names.is_lent(name) else (session.id, int(session.generation))
        self._host.networks.setdefault(name, Network(name, owner, generation, "bridge"))

    def _release(self, release: Any, failures: Failures) -> Generator[float, None, None]:
        yield self._host.chance.seconds(0.1, 0.5)
        for kernel, seen in release.waiting:
            container = self._host.containers.get((release.session.id, kernel.name)) if seen else None
            if container is None or container.state != "running":
                failures[release.session.id] = f"{kernel.name} ended before it was released", False
                return
        if self._is_too_late(release.session):
            failures[release.session.id] = _TOO_LATE
        else:
            yield from self._let_go(release.session)

    def _is_too_late(self, session: Any) -> bool:
        """Return whether what has not begun of the session here may begin no more."""
        containers = (self._host.containers.get((session.id, kernel.name)) for kernel in session.kernels)
        waits = any(container is not None and not self._host.is_released(container) for container in containers)
        return waits and self._begin_by_s is not None and self._host.uptime_s > self._begin_by_s

    def _repair(self, repair: Any, failures: Failures) -> Generator[float, None, None]:
        """Put kernels back on their network, which may be made again."""
        yield self._host.chance.seconds(0.1, 0.5)
        session = repair.session
        if self._host.chance.happens(_REPAIR_FAILS):
            failures[session.id] = f"network {session.network['name']} cannot be made again", False
            return
        if repair.network_missing:
            self._make_network(session)
        for seen in repair.cut_off:
            self._host.containers[session.id, seen.kernel_name].network = session.network["name"]

    def _let_go(self, session: Any) -> Generator[float, None, None]:
        for kernel in session.kernels:
            container = self._host.containers.get((session.id, kernel.name))
            if container is None or self._host.is_released(container):
                continue
            self._host.keys.setdefault(session.id, {})[kernel.name] = container.generation
            if container.state == "running":
                self._host.witness.command_begins(self._host, container)
            yield 0.01

    def _give_notice(self, session: Any) -> None:
        if session.desired == agent_manifest.KEEP:
            for container in self._of_session(session.id):
                if container.state == "running" and str(container.generation) == str(session.generation):
                    container.notice = session.notice or None

    def _send_signal(self, session: Any) -> None:
        if session.desired != agent_manifest.KEEP or session.signal is None:
            return
        for container in self._of_session(session.id):
            is_meant = str(container.generation) == str(session.generation) and container.state == "running"
            has_keys = container.kernel_name in self._host.keys.get(session.id, {})
            if not is_meant or not has_keys or container.kernel_name not in session.signal.kernels:
                continue
            if container.signals < session.signal.times:
                container.signals = session.signal.times
                self._host.witness.is_signalled(self._host, container)

    def _terminate(self, stop: Any) -> None:
        if self._host.stops_fail:
            return
        for container in self._of_session(stop.session.id):
            if container.state == "running":
                self._host.container_ends(container, _TERMINATED, "stopped")

    def _end_stop(self, stop: Any, failures: Failures) -> None:
        if not self._host.engine_runs:
            failures[stop.session.id] = _NO_ENGINE, False
            return
        if self._host.stops_fail or self._host.disk_is_full or self._host.removals_fail:
            self._leftovers.append(f"session {stop.session.id}")
            failures[stop.session.id] = "[Errno 28] No space left on device", False
            return
        named = {kernel.id for kernel in stop.session.kernels}
        for container in self._of_session(stop.session.id):
            if container.kernel_id in named:
                self._host.spool.setdefault(stop.session.id, {})[container.kernel_name] = last_words(
                    self._host, container
                )
            self._remove(container)
        self._may_die()
        self._host.keys.pop(stop.session.id, None)
        for seen in stop.networks:
            self._host.networks.pop(seen.name, None)

    def _spooled(self, session: Any) -> list[dict[str, Any]]:
        named = {kernel.id for kernel in session.kernels}
        return [words for words in self._host.spool.get(session.id, {}).values() if words["kernel_id"] in named]

    @staticmethod
    def _outcome(session: Any, failure: tuple[str, bool] | None) -> dict[str, Any]:
        done = {"release": "released", "keep": "kept", "stop": "stopped", "launch": "started"}[session.desired]
        if failure:
            return {"id": session.id, "outcome": "failed", "error": failure[0], "permanent": failure[1]}
        outcome = "released" if session.release else done
        return {"id": session.id, "outcome": outcome, "error": None, "permanent": False}
