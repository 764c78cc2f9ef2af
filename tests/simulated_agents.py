"""Agents in memory that keep docs/agent-contract.md: manifests in, outcomes and reports out, failures on demand.

They stand in for the Ansible gateway in tests of the pass. What they do with a manifest is what that page says that
`agent_converge` does, and nothing else.
"""

import base64
import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from muster.ansible_gateway.gateway import Convergence, Observation


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
    units_per_gpu: int = 0,
    resource_group: str = "default",
    **attributes: object,
) -> dict[str, Any]:
    """The report of a host on which nothing runs."""
    return {
        "version": 1,
        "hostname": hostname,
        "boot_id": "boot-1",
        "os": "Debian GNU/Linux 12 (bookworm)",
        "kernel": "6.1.0",
        "architecture": "x86_64",
        "cpu_count": cpus,
        "numa": [],
        "mem_bytes": mem_bytes,
        "mem_available_bytes": mem_bytes,
        "disk": {"path": "/var/lib/docker", "total_bytes": 1, "free_bytes": 1},
        "docker": {"version": "20.10.24", "api_version": "1.41", "storage_driver": "overlay2", "cgroup_version": "1"},
        "gpus": [
            {"index": index, "uuid": f"GPU-{hostname}-{index}", "model": "T", "mem_bytes": 1 << 30, "numa_node": 0}
            for index in range(gpus)
        ],
        "runtime": "1",
        "images": [],
        "generation": 0,
        "kernels": [],
        "networks": [],
        "attributes": {
            "resource_group": resource_group,
            "units_per_gpu": units_per_gpu,
            "publish_address": "127.0.0.1",
            "connection": "local",
            **attributes,
        },
    }


class StaleGenerationError(Exception):
    """The manifest is older than the one that the host has accepted."""


@dataclass
class SimulatedAgent:
    """One host. `removed` is told of every container that a manifest, not a hand on the host, took away."""

    id: str
    hardware: dict[str, Any]
    reachable: bool = True
    answer_gets_lost: bool = False
    module_fails: str = ""
    next_launches: list[Failing] = field(default_factory=list)
    containers: dict[str, Container] = field(default_factory=dict)
    networks: dict[str, int] = field(default_factory=dict)
    spool: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    generation: int = 0
    made: int = 0
    removed: Callable[[Container], None] = lambda _container: None

    def report(self) -> dict[str, Any]:
        return {
            **self.hardware,
            "generation": self.generation,
            "kernels": [self._seen(container) for container in self.containers.values()],
            "networks": [
                {"name": f"muster-{session_id.replace('-', '')[:12]}", "session_id": session_id}
                for session_id in self.networks
            ],
        }

    def of_session(self, session_id: str) -> list[Container]:
        return [container for container in self.containers.values() if container.session_id == session_id]

    def converge(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        if manifest["generation"] < self.generation:
            raise StaleGenerationError
        self.generation = manifest["generation"]
        wanted = {session["id"]: session for session in manifest["sessions"]}
        for container in list(self.containers.values()):
            session = wanted.get(container.session_id, {"desired": "remove", "kernels": []})
            named = container.kernel_id in {kernel["id"] for kernel in session["kernels"]}
            if not named and session["desired"] != "stop":
                self._remove(container)
        for session_id in set(self.networks) - set(wanted):
            del self.networks[session_id]
        for session_id in set(self.spool) - set(wanted):
            del self.spool[session_id]
        outcomes = [self._converge_session(session) for session in wanted.values()]
        words = [word for session in self.spool.values() for word in session.values()]
        return {"sessions": outcomes, "last_words": words, "report": self.report()}

    def _converge_session(self, session: Mapping[str, Any]) -> dict[str, Any]:
        steps = {"launch": self._launch, "keep": self._keep, "stop": self._stop}
        return {"id": session["id"], "error": None, "permanent": False, **steps[session["desired"]](session)}

    def _launch(self, session: Mapping[str, Any]) -> dict[str, Any]:
        for container in self.of_session(session["id"]):
            if container.generation != session["generation"]:
                self._remove(container)
        if self.next_launches:
            failing = self.next_launches.pop(0)
            self._forget(session["id"])
            return {"outcome": "failed", "error": f"it fails ({failing})", "permanent": failing is Failing.PERMANENT}
        self.networks[session["id"]] = session["generation"]
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
                )
        return {"outcome": "started"}

    def _keep(self, _session: Mapping[str, Any]) -> dict[str, Any]:
        return {"outcome": "kept"}

    def _stop(self, session: Mapping[str, Any]) -> dict[str, Any]:
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
            }
        self._forget(session["id"])
        return {"outcome": "stopped"}

    def _forget(self, session_id: str) -> None:
        for container in self.of_session(session_id):
            self._remove(container)
        self.networks.pop(session_id, None)

    def _remove(self, container: Container) -> None:
        self.removed(container)
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
            "released": True,
            "exit_code": container.exit_code,
            "oom_killed": container.oom_killed,
            "started_at": "2026-01-01T00:00:00Z",
            "finished_at": "2026-01-01T00:01:00Z" if ended else None,
            "address": None if ended else "10.1.2.3",
            "ssh_port": 49153 if container.name == "main1" and not ended else None,
        }


class SimulatedGateway:
    """The agents of one inventory. Counts what it was asked; `crash` raises before or after the agents act."""

    def __init__(self, *agents: SimulatedAgent) -> None:
        self.agents = {agent.id: agent for agent in agents}
        self.observations = 0
        self.manifests: list[dict[str, Mapping[str, Any]]] = []
        self.crash_before: BaseException | None = None
        self.crash_after: BaseException | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def observe(self) -> Observation:
        self.observations += 1
        reports = {agent.id: agent.report() for agent in self.agents.values() if agent.reachable}
        problems = {agent.id: "it does not answer" for agent in self.agents.values() if not agent.reachable}
        return Observation(reports, problems)

    def converge(self, manifests: Mapping[str, Mapping[str, Any]]) -> Convergence:
        if self.crash_before is not None:
            raise self.crash_before
        self.manifests.append(dict(manifests))
        self.meanwhile()
        reports: dict[str, dict[str, Any]] = {}
        outcomes: dict[str, dict[str, dict[str, Any]]] = {}
        refused: dict[str, str] = {}
        unreachable: dict[str, str] = {}
        for agent_id, manifest in manifests.items():
            agent = self.agents[agent_id]
            if not agent.reachable:
                unreachable[agent_id] = "it does not answer"
                continue
            if agent.module_fails:
                refused[agent_id] = agent.module_fails
                continue
            answer = agent.converge(manifest)
            if agent.answer_gets_lost:
                unreachable[agent_id] = "the connection broke"
                continue
            reports[agent_id] = answer["report"]
            for outcome in answer["sessions"]:
                words = [word for word in answer["last_words"] if word["session_id"] == outcome["id"]]
                outcomes.setdefault(outcome["id"], {})[agent_id] = {**outcome, "last_words": words}
        if self.crash_after is not None:
            raise self.crash_after
        return Convergence(reports, outcomes, refused, unreachable)
