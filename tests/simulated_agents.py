"""Agents in memory that keep docs/agent-contract.md: manifests in, outcomes and reports out, failures on demand.

They stand in for the Ansible gateway in tests of the pass. What they do with a manifest is what that page says that
`agent_converge` does, and nothing else.
"""

import base64
import copy
import gzip
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event
from typing import Any

from muster.ansible_gateway.gateway import read_visit
from muster.ansible_gateway.layout import INVENTORY
from muster.contract.manifest import Manifest
from muster.core.agents.agent import Agent
from muster.core.images.names import familiar
from muster.core.lifecycle.answer import AgentAnswer, AnswerHandler
from muster.core.values.errors import AnsibleFailedError, ImageError

IMAGES = ("busybox:latest", "debian:12", "muster/default:latest", "registry.example:5000/team/image:1")


class Failing(StrEnum):
    """What becomes of a launch."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"


@dataclass
class Container:
    """What an engine knows of a kernel's container."""

    session_id: str
    kernel_id: str
    name: str
    generation: int
    resources: Mapping[str, Any]
    env: Mapping[str, str]
    command: list[str]
    number: int
    gpus: Sequence[Mapping[str, Any]] = ()
    gpu_used_bytes: int | None = 0
    released: bool = False
    state: str = "running"
    exit_code: int | None = None
    oom_killed: bool = False

    def end(self, exit_code: int, *, oom_killed: bool = False) -> None:
        self.state, self.exit_code, self.oom_killed = "exited", exit_code, oom_killed


def report_of(
    hostname: str = "host-1",
    cpus: int = 8,
    mem_bytes: int = 16 << 30,
    gpus: int = 0,
    swarm: str = "",
    gpu_models: Sequence[str] = ("T",),
    numa_nodes: int = 0,
    encrypts: bool = False,
) -> dict[str, Any]:
    """Return the report of a host on which nothing runs, as it comes over the wire.

    `swarm` is manager, worker or, outside one, empty. Its GPUs are of the models in turn. They, the cores and the
    memory are spread evenly over the NUMA nodes.
    """
    nodes = max(1, numa_nodes)
    return {
        "version": 1,
        "hostname": hostname,
        "boot_id": "boot-1",
        "os": "Debian GNU/Linux 12 (bookworm)",
        "kernel": "6.1.0",
        "architecture": "x86_64",
        "cpu_count": cpus,
        "numa": [
            {
                "node": node,
                "cpus": f"{cpus * node // nodes}-{cpus * (node + 1) // nodes - 1}",
                "mem_bytes": mem_bytes // nodes,
            }
            for node in range(numa_nodes)
        ],
        "mem_bytes": mem_bytes,
        "mem_available_bytes": mem_bytes,
        "disk": {"path": "/var/lib/docker", "total_bytes": 1, "free_bytes": 1},
        "docker": {
            "version": "20.10.24",
            "api_version": "1.41",
            "storage_driver": "overlay2",
            "cgroup_version": "1",
            "remapped_ids": None,
        },
        "gpus": [
            {
                "index": index,
                "uuid": f"GPU-{hostname}-{index}",
                "model": gpu_models[index % len(gpu_models)],
                "mem_bytes": 1 << 30,
                "numa_node": index * nodes // gpus,
                "mem_used_bytes": 0,
                "parent_uuid": None,
                "mig_profile": None,
                "fraction": None,
            }
            for index in range(gpus)
        ],
        "runtime": "1",
        "fgpu": "1" if gpus else None,
        "gpu_toolkit": "1.17.8" if gpus else None,
        "images": [{"id": f"sha256:{tag}", "tags": [tag], "size_bytes": 1} for tag in IMAGES],
        "swarm": {
            "state": "active" if swarm else "inactive",
            "node_id": f"node-{hostname}" if swarm else None,
            "manager": swarm == "manager",
            "encrypts": encrypts,
        },
        "generation": 0,
        "kernels": [],
        "networks": [],
        "spools": [],
    }


_HARDWARE = frozenset(inspect.signature(report_of).parameters)


def host_of(hostname: str = "host-1", **facts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a host's report and its inventory attributes: those of `facts` that `report_of` does not take."""
    stated = {name: value for name, value in facts.items() if name not in _HARDWARE}
    inventory = {"resource_group": "default", "units_per_gpu": 0, "connection": "local", **stated}
    return report_of(hostname, **{name: value for name, value in facts.items() if name in _HARDWARE}), inventory


class StaleGenerationError(Exception):
    """The manifest is older than the one that the host has accepted."""


@dataclass
class Network:
    """A network of one session."""

    name: str
    driver: str
    generation: int
    session_id: str = ""


Overlays = dict[str, Network]


@dataclass
class SimulatedAgent:
    """One host. Its callbacks are called for changes by manifests, not for those made on the host itself."""

    id: str
    hardware: dict[str, Any]
    inventory: dict[str, Any] = field(default_factory=dict)
    reachable: bool = True
    answer_gets_lost: bool = False
    hangs: bool = False
    module_fails: str = ""
    module_breaks_off: str = ""
    releases_fail: bool = False
    pull_fails: ImageError | None = None
    pull_hangs: bool = False
    lists_what_it_pulled: bool = True
    stops_fail: bool = False
    resists: bool = False
    next_launches: list[Failing] = field(default_factory=list)
    containers: dict[str, Container] = field(default_factory=dict)
    networks: dict[str, Network] = field(default_factory=dict)
    spool: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    generation: int = 0
    made: int = 0
    says: Callable[[dict[str, Any]], dict[str, Any]] = lambda result: result
    visits: int = 0
    was_made: Callable[[Container], None] = lambda _container: None
    was_released: Callable[[Container], None] = lambda _container: None
    was_removed: Callable[[Container], None] = lambda _container: None

    def report(self) -> dict[str, Any]:
        return {
            **self.hardware,
            "generation": self.generation,
            "spools": sorted(self.spool),
            "kernels": [self._seen(container) for container in self.containers.values()],
            "networks": [
                {
                    "name": network.name,
                    "session_id": session_id,
                    "driver": network.driver,
                    "generation": network.generation,
                }
                for session_id, network in self.networks.items()
            ],
        }

    def reboot(self, *, exit_code: int = 255) -> None:
        """Boot anew: what ran has ended, and what lay in memory is gone."""
        self.hardware = {**self.hardware, "boot_id": f"{self.hardware['boot_id']}-again"}
        for container in self.containers.values():
            container.released = False
            if container.state == "running":
                container.end(exit_code)

    def of_session(self, session_id: str) -> list[Container]:
        return [container for container in self.containers.values() if container.session_id == session_id]

    def converge(self, manifest: Mapping[str, Any], overlays: Overlays) -> dict[str, Any]:
        if manifest["generation"] < self.generation:
            raise StaleGenerationError
        self.generation = manifest["generation"]
        self._keep_overlays(manifest, overlays)
        wanted = {session["id"]: session for session in manifest["sessions"]}
        for container in list(self.containers.values()):
            session = wanted.get(container.session_id, {"desired": "remove", "kernels": []})
            named = container.kernel_id in {kernel["id"] for kernel in session["kernels"]}
            if not named and session["desired"] != "stop" and not self.resists:
                self._remove(container)
        for session_id, network in list(self.networks.items()):
            if network.driver == "bridge" and session_id not in wanted:
                del self.networks[session_id]
        for session_id in list(self.spool):
            if wanted.get(session_id, {}).get("desired") != "stop":
                del self.spool[session_id]
        outcomes = [self._converge_session(session, overlays) for session in wanted.values()]
        words = [word for session in self.spool.values() for word in session.values()]
        return {"sessions": outcomes, "last_words": words, "report": self.report()}

    def _keep_overlays(self, manifest: Mapping[str, Any], overlays: Overlays) -> None:
        if manifest["overlays"] is None:
            return
        wanted = {overlay["name"]: overlay for overlay in manifest["overlays"]}
        for name, overlay in wanted.items():
            overlays.setdefault(name, Network(name, "overlay", overlay["generation"], overlay["session_id"]))
        for name, network in list(overlays.items()):
            if name not in wanted and network.generation <= manifest["generation"]:
                del overlays[name]

    def _converge_session(self, session: Mapping[str, Any], overlays: Overlays) -> dict[str, Any]:
        entry = {"id": session["id"], "error": None, "permanent": False}
        match session["desired"]:
            case "launch":
                return {**entry, **self._launch(session, overlays)}
            case "release":
                return {**entry, **self._release(session)}
            case "keep":
                return {**entry, "outcome": "kept"}
            case _:
                return {**entry, **self._stop(session)}

    def _launch(self, session: Mapping[str, Any], overlays: Overlays) -> dict[str, Any]:
        for container in self.of_session(session["id"]):
            if container.generation != session["generation"]:
                self._remove(container)
        if session["network"]["driver"] == "overlay" and session["network"]["name"] not in overlays:
            return {"outcome": "failed", "error": "the overlay network is not there"}
        if self.next_launches:
            failing = self.next_launches.pop(0)
            self._forget(session["id"])
            return {"outcome": "failed", "error": f"it fails ({failing})", "permanent": failing is Failing.PERMANENT}
        if session["network"]["driver"] == "bridge":
            self.networks[session["id"]] = Network(session["network"]["name"], "bridge", session["generation"])
        for kernel in session["kernels"]:
            if kernel["id"] not in self.containers:
                self.made += 1
                self.containers[kernel["id"]] = Container(
                    session["id"],
                    kernel["id"],
                    kernel["name"],
                    session["generation"],
                    kernel["resources"],
                    kernel["env"],
                    kernel["command"],
                    self.made,
                    kernel["gpus"],
                )
                self.was_made(self.containers[kernel["id"]])
        return self._released(session) if session["release"] else {"outcome": "started"}

    def _release(self, session: Mapping[str, Any]) -> dict[str, Any]:
        if self.releases_fail:
            return {"outcome": "failed", "error": "the engine does not answer"}
        for kernel in session["kernels"]:
            container = self.containers.get(kernel["id"])
            if container is None or (container.state != "running" and not container.released):
                return {"outcome": "failed", "error": f"{kernel['name']} ended before it was released"}
        return self._released(session)

    def _released(self, session: Mapping[str, Any]) -> dict[str, Any]:
        for container in self.of_session(session["id"]):
            if not container.released:
                container.released = True
                self.was_released(container)
        return {"outcome": "released"}

    def _stop(self, session: Mapping[str, Any]) -> dict[str, Any]:
        if self.stops_fail:
            return {"outcome": "failed", "error": "the engine does not stop main1"}
        spool = self.spool.setdefault(session["id"], {})
        for container in self.of_session(session["id"]):
            if container.state == "running":
                container.end(143)
            spool[container.kernel_id] = {
                "session_id": container.session_id,
                "kernel_id": container.kernel_id,
                "name": container.name,
                "exit_code": container.exit_code,
                "oom_killed": container.oom_killed,
                "started_at": "2026-01-01T00:00:00Z",
                "finished_at": "2026-01-01T00:01:00Z",
                "log_gz_b64": base64.b64encode(gzip.compress(f"{container.name}\n".encode(), mtime=0)).decode(),
                "log_truncated": False,
                "use": None,
            }
        self._forget(session["id"])
        return {"outcome": "stopped"}

    def _forget(self, session_id: str) -> None:
        for container in self.of_session(session_id):
            self._remove(container)
        self.networks.pop(session_id, None)

    def _remove(self, container: Container) -> None:
        self.was_removed(container)
        del self.containers[container.kernel_id]

    @staticmethod
    def _seen(container: Container) -> dict[str, Any]:
        ended = container.state != "running"
        return {
            "kernel_id": container.kernel_id,
            "session_id": container.session_id,
            "name": container.name,
            "generation": container.generation,
            "container_id": f"c{container.number}",
            "state": container.state,
            "released": container.released,
            "exit_code": container.exit_code,
            "oom_killed": container.oom_killed,
            "started_at": "2026-01-01T00:00:00Z",
            "finished_at": "2026-01-01T00:01:00Z" if ended else None,
            "address": None if ended else "10.1.2.3",
            "ssh_port": 49153 if container.name == "main1" and not ended else None,
            "gpus": [{**gpu, "used_bytes": container.gpu_used_bytes} for gpu in container.gpus],
            "apps": {},
            "use": None,
            "disk_bytes": None,
            "notice": None,
        }


class SimulatedGateway:
    """The agents of one inventory. Counts its requests; `crash` raises before or after the agents act.

    An agent that hangs keeps its run waiting, once the others have answered, and one whose pulls hang its pulls, until
    `let_go` is set.
    """

    def __init__(self, *agents: SimulatedAgent) -> None:
        self.agents = {agent.id: agent for agent in agents}
        self.overlays: Overlays = {}
        self.observations: list[list[str]] = []
        self.manifests: list[dict[str, Mapping[str, Any]]] = []
        self.crash_before: BaseException | None = None
        self.crash_after: BaseException | None = None
        self.fails: AnsibleFailedError | OSError | None = None
        self.breaks_off_after: int | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self.pulled: list[tuple[str, str]] = []
        self.let_go = Event()

    def observe(self, agent_ids: Collection[str], on_answer: AnswerHandler, without: Collection[str] = ()) -> None:
        if self.fails:
            raise self.fails
        asked = [a for a in self.agents.values() if a.id in agent_ids or (not agent_ids and a.id not in without)]
        self.observations.append([agent.id for agent in asked])
        for agent in self._hanging_last(asked[: self.breaks_off_after]):
            on_answer(self._refusal(agent) or self._answer(agent, {"report": self._report(agent)}))
        if self.breaks_off_after is not None:
            raise AnsibleFailedError("it was killed")

    def converge(self, manifests: Mapping[str, Manifest], on_answer: AnswerHandler) -> None:
        if self.crash_before is not None:
            raise self.crash_before
        if self.fails:
            raise self.fails
        self.manifests.append({agent_id: manifest.model_dump(mode="json") for agent_id, manifest in manifests.items()})
        self.meanwhile()
        asked = [self.agents[agent_id] for agent_id in manifests if agent_id in self.agents]
        # The one that makes the overlays comes first: on real hosts the others wait for them.
        asked.sort(key=lambda agent: manifests[agent.id].overlays is None)
        answers = []
        for agent in self._hanging_last(asked):
            answer = self._refusal(agent) or self._converged(agent, manifests[agent.id])
            if agent.hangs or self.crash_after is None:
                on_answer(answer)
            else:
                answers.append(answer)
        if self.crash_after is not None:
            raise self.crash_after

    def pull(self, agent: Agent, reference: str, progressed: Callable[[int, int], None]) -> None:
        host = self.agents[agent.id]
        self.pulled.append((agent.id, reference))
        progressed(1, 2)
        self.meanwhile()
        if host.pull_hangs:
            self.let_go.wait(30)
        if host.pull_fails:
            raise host.pull_fails
        if host.lists_what_it_pulled:
            image = {"id": f"sha256:{reference}", "tags": [familiar(reference)], "size_bytes": 1}
            host.hardware["images"] = [*host.hardware["images"], image]

    def _hanging_last(self, agents: list[SimulatedAgent]) -> Any:
        for agent in sorted(agents, key=lambda agent: agent.hangs):
            if agent.hangs:
                self.let_go.wait(30)
            agent.visits += 1
            yield agent

    def _report(self, agent: SimulatedAgent) -> dict[str, Any]:
        report = agent.report()
        if report["swarm"]["manager"]:
            report["networks"] += [
                {"name": n.name, "session_id": n.session_id, "driver": n.driver, "generation": n.generation}
                for n in self.overlays.values()
            ]
        return report

    @staticmethod
    def _refusal(agent: SimulatedAgent) -> AgentAnswer | None:
        if not agent.reachable:
            return AgentAnswer(agent.id, problem="it does not answer", reached=False, nothing_begun=True)
        return AgentAnswer(agent.id, problem=agent.module_fails, nothing_begun=True) if agent.module_fails else None

    def _converged(self, agent: SimulatedAgent, manifest: Manifest) -> AgentAnswer:
        result = agent.converge(manifest.model_dump(mode="json"), self.overlays)
        if agent.answer_gets_lost:
            return AgentAnswer(agent.id, problem="the connection broke", reached=False)
        if agent.module_breaks_off:
            return AgentAnswer(agent.id, problem=agent.module_breaks_off)
        return self._answer(agent, {**result, "report": self._report(agent)}, {agent.id: manifest})

    @staticmethod
    def _answer(
        agent: SimulatedAgent, result: dict[str, Any], manifests: Mapping[str, Manifest] | None = None
    ) -> AgentAnswer:
        said = agent.says(copy.deepcopy(result))
        return read_visit(agent.id, {**said, INVENTORY: agent.inventory}, manifests=manifests)
