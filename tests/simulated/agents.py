"""Agents in memory that keep docs/agent-contract.md: manifests in, outcomes and reports out, failures on demand.

What they do with a manifest is what that page says that `agent_converge` does, and nothing else.
"""

import base64
import gzip
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from muster.core.values.errors import ImageError
from tests.simulated.hosts import holds_image


class Failing(StrEnum):
    """The way in which a launch fails."""

    TRANSIENT = "transient"
    PERMANENT = "permanent"


@dataclass
class Container:
    """A kernel's container as an engine knows it."""

    session_id: str
    kernel_id: str
    name: str
    generation: int
    resources: Mapping[str, Any]
    env: Mapping[str, str]
    command: list[str]
    number: int
    gpus: Sequence[Mapping[str, Any]] = ()
    public_key: str = "ssh-ed25519 AAAA"
    gpu_used_bytes: int | None = 0
    gpu_processes: int | None = 1
    uncapped: Sequence[int] = ()
    released: bool = False
    state: str = "running"
    exit_code: int | None = None
    oom_killed: bool = False

    def end(self, exit_code: int, *, oom_killed: bool = False) -> None:
        self.state, self.exit_code, self.oom_killed = "exited", exit_code, oom_killed


class StaleGenerationError(Exception):
    """The manifest is older than the one that the host has accepted."""


class ForeignDatabaseError(Exception):
    """Containers run on the host by the manifest of a database that this one's does not continue."""


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
    """A host. Its callbacks are called for changes by manifests, not for those made on the host itself."""

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
    leftover_files: str = ""
    files: set[str] = field(default_factory=set)
    next_launches: list[Failing] = field(default_factory=list)
    containers: dict[str, Container] = field(default_factory=dict)
    networks: dict[str, Network] = field(default_factory=dict)
    spool: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    generation: int | None = 0
    database: str | None = None
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
            "database": self.database,
            "spools": sorted(self.spool),
            "files": sorted(self.files),
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
        self.files.clear()
        for container in self.containers.values():
            container.released = False
            if container.state == "running":
                container.end(exit_code)

    def reinstall(self) -> None:
        """Boot anew, with nothing of what was there."""
        self.reboot()
        self.generation = None
        for kept in (self.containers, self.networks, self.spool):
            kept.clear()

    def of_session(self, session_id: str) -> list[Container]:
        return [container for container in self.containers.values() if container.session_id == session_id]

    def converge(self, manifest: Mapping[str, Any], overlays: Overlays) -> dict[str, Any]:
        before = self.generation or 0
        if manifest["generation"] < before:
            raise StaleGenerationError
        self._obey(manifest["databases"])
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
        if not self.resists:
            self.files &= wanted.keys()
        for session_id in list(self.spool):
            if wanted.get(session_id, {}).get("desired") != "stop" and session_id not in manifest["kept_spools"]:
                del self.spool[session_id]
        outcomes = [self._converge_session(session, overlays) for session in wanted.values()]
        stopped = [self.spool.get(id_, {}) for id_, session in wanted.items() if session["desired"] == "stop"]
        words = [word for spool in stopped for word in spool.values()]
        report = {**self.report(), "generation_before": before, "leftovers": self._leftovers(wanted)}
        return {"sessions": outcomes, "last_words": words, "report": report}

    def _obey(self, databases: Sequence[str]) -> None:
        if self.containers and databases and self.database not in {None, *databases}:
            raise ForeignDatabaseError
        self.database = databases[0] if databases else self.database

    def _leftovers(self, wanted: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return what it was to remove and still has; some of it is in nothing else that it says."""
        files = [self.leftover_files] if self.resists and self.leftover_files else []
        self.leftover_files = self.leftover_files if self.resists else ""
        strays = [f"container {id_}" for id_, one in self.containers.items() if one.session_id not in wanted]
        return [{"name": name, "error": "it is busy"} for name in (*files, *strays)]

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
        images = {kernel["image"] for kernel in session["kernels"]} if self.lists_what_it_pulled else set()
        if lacking := {image for image in images if not holds_image(self.hardware, image)}:
            self._forget(session["id"])
            return {"outcome": "failed", "error": f"image {min(lacking)} is not on this agent"}
        if session["network"]["driver"] == "bridge":
            self.networks[session["id"]] = Network(session["network"]["name"], "bridge", session["generation"])
        self.files.add(session["id"])
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
                    session["public_key"],
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
        self.files.discard(session_id)
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
            "public_key": container.public_key,
            "exit_code": container.exit_code,
            "oom_killed": container.oom_killed,
            "started_at": "2026-01-01T00:00:00Z",
            "finished_at": "2026-01-01T00:01:00Z" if ended else None,
            "address": None if ended else "10.1.2.3",
            "ssh_port": 49153 if container.name == "main1" and not ended else None,
            "gpus": [
                {
                    **gpu,
                    "used_bytes": container.gpu_used_bytes,
                    "processes": container.gpu_processes,
                    "enforced_bytes": None,
                }
                for gpu in container.gpus
            ],
            "uncapped": [*container.uncapped],
            "apps": {},
            "use": None,
            "disk_bytes": None,
            "notice": None,
            "signals": 0,
            "signal_receivers": 0,
        }
