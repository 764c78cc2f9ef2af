"""Launching a session's kernels on this host: all at once, and all or none."""

from __future__ import annotations

import re
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from . import account_files, agent_names, container_spec, key_directory
from .engine_api import EngineApi, EngineError
from .mount_folders import FolderError, check_target, resolve_folder
from .removal import remove_container

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future, ThreadPoolExecutor

    from .agent_manifest import Kernel, Manifest, Session
    from .agent_plan import Launch

_OWNER_LABELS = (agent_names.LABEL_CLUSTER, agent_names.LABEL_SESSION)
_POLL_S = 0.01
_NETWORK_POLL_S = 0.25
_INSPECT_EVERY = 5
_CONNECT_TIMEOUT_S = 0.25
_GREETING_TIMEOUT_S = 2
_AMBIGUOUS = "is ambiguous"
_ADDRESS_IN_USE = re.compile(r"(\S+:\d+)\S* (?:failed: port is already allocated|bind: address already in use)")


class LaunchError(Exception):
    """A session cannot be launched here: one line for its user."""

    def __init__(self, message: str, *, permanent: bool) -> None:
        super().__init__(message)
        self.permanent = permanent


class _GivenUpError(Exception):
    """Another kernel of the gang has failed: the reason is that one's."""


class Image(NamedTuple):
    id: str
    environment: list[str]


class Images:
    """The images of a run: each looked up, pulled and read once, whatever the number of kernels."""

    def __init__(self, engine: EngineApi, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._images: dict[str, Image] = {}
        self.pulled: list[str] = []

    def get(self, reference: str) -> Image:
        """Return an image, pulled if it is not there."""
        with self._lock_of(reference):
            if reference not in self._images:
                found = self._find(reference)
                self._images[reference] = Image(found["Id"], found["Config"].get("Env") or [])
            return self._images[reference]

    def facts(self, image: Image, home: str) -> account_files.ImageFacts:
        with self._lock_of(image.id):
            return account_files.image_facts(self._engine, self._cluster, image.id, home)

    def _lock_of(self, key: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(key, threading.Lock())

    def _find(self, reference: str) -> dict[str, Any]:
        try:
            return self._engine.image(reference)
        except EngineError as error:
            if error.status != 404:
                raise
        try:
            self._engine.pull_image(reference)
        except EngineError as error:
            message = f"image {reference} is not on this agent and cannot be pulled: {error}"
            raise LaunchError(message, permanent=True) from error
        self.pulled.append(reference)
        return self._engine.image(reference)


class GangLaunch:
    """One session's launch on this host; `start` it, then take its `failure`."""

    def __init__(
        self, engine: EngineApi, images: Images, manifest: Manifest, launch: Launch, pool: ThreadPoolExecutor
    ) -> None:
        self._engine = engine
        self._images = images
        self._manifest = manifest
        self.launch = launch
        self.session = launch.session
        self._paths = agent_names.ClusterPaths(manifest.cluster)
        self._given_up = threading.Event()
        self._twins_lock = threading.Lock()
        self._refusal: LaunchError | None = None
        self._kernels: list[Future[None]] = []
        try:
            missing = [(kernel, resolved_folders(manifest, kernel)) for kernel in launch.missing]
        except LaunchError as error:
            self._refusal = error
            return
        self._network: Future[None] = pool.submit(self._make_network)
        steps = [partial(self._launch_kernel, *pair) for pair in missing]
        steps += [partial(self._await_present, *pair) for pair in launch.present]
        self._kernels = [pool.submit(self._guarded, step) for step in steps]

    def failure(self) -> BaseException | None:
        """Wait for all kernels; return why the gang failed, or None when all of them answer."""
        if self._refusal:
            return self._refusal
        failures = [future.exception() for future in (self._network, *self._kernels)]
        told = [failure for failure in failures if failure is not None and not isinstance(failure, _GivenUpError)]
        if not told:
            for kernel in self.session.kernels:
                if not self._is_released(kernel):
                    key_directory.release(self._paths, self.session.id, kernel.name, self.session.generation)
            return None
        return _as_launch_error(told[0]) if isinstance(told[0], EngineError) else told[0]

    def _is_released(self, kernel: Kernel) -> bool:
        return key_directory.is_released(self._paths, self.session.id, kernel.name, self.session.generation)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException:  # whatever it was, the other kernels need not go on; it is raised again
            self._given_up.set()
            raise

    def _make_network(self) -> None:
        if not self.launch.network_missing:
            return
        session = self.session
        body = container_spec.network_body(self._manifest.cluster, session, self.launch.swarm_node)
        try:
            self._engine.create_network(body)
        except EngineError as error:
            # 409: made by another manager of the swarm, or by a request that a killed run had sent.
            if error.status == 409 and self._own_networks():
                return
            self._given_up.set()
            raise LaunchError(_network_message(session, error), permanent=error.status == 400) from error

    def _own_networks(self) -> list[str]:
        labels = container_spec.labels(self._manifest.cluster, self.session)
        return [network["Id"] for network in self._engine.networks(*(f"{name}={labels[name]}" for name in labels))]

    def _remove_twins(self) -> None:
        """Leave one network of the session's name: the engine makes two while a killed run's request is under way."""
        with self._twins_lock:
            twins = self._own_networks()
            while len(twins) > 1:
                with suppress(EngineError):  # the one that has kernels on it already
                    self._engine.remove_network(twins[-1])
                twins.pop()

    def _launch_kernel(self, kernel: Kernel, folders: dict[str, str]) -> None:
        manifest, session, user = self._manifest, self.session, kernel.spec["user"]
        image = self._images.get(kernel.spec["image"])
        facts = self._images.facts(image, user["home"])
        shell = facts.login_shell(manifest.runtime_path)
        environment = container_spec.complete_environment(kernel, image.environment, manifest.runtime_path, shell)
        files = dict(kernel.spec["files"])
        if "sshd_config" in files:
            content = container_spec.sshd_config_with(files["sshd_config"]["content"], environment)
            files["sshd_config"] = {**files["sshd_config"], "content": content}
        keys = self._paths.kernel_keys(session.id, kernel.name)
        key_directory.write_keys(keys, files, user["uid"], user["gid"])
        body = container_spec.container_body(manifest, session, kernel, environment, folders)
        self._check_not_given_up()
        name = agent_names.container_name(session.id, kernel.name)
        container_id = self._create(name, body, time.monotonic() + manifest.start_timeout_s)
        targets = [mount["target"] for mount in kernel.spec["mounts"]]
        self._engine.put_archive(container_id, account_files.account_tar(facts, user, environment, targets))
        self._network.result()
        give_up_at = time.monotonic() + manifest.start_timeout_s
        self._start(kernel, container_id, give_up_at)
        self._await_sshd(kernel, container_id, give_up_at)

    def _create(self, name: str, body: dict[str, Any], give_up_at: float) -> str:
        while True:
            try:
                return self._engine.create_container(body, name)
            except EngineError as error:
                if error.status != 409 or time.monotonic() > give_up_at:
                    raise
            self._remove_unfinished(name, body["Labels"])

    def _remove_unfinished(self, name: str, labels: dict[str, str]) -> None:
        """Remove what a killed run's last request made after this run had looked: it never got further than that."""
        try:
            found = self._engine.container(name)["Config"]["Labels"]
        except EngineError as error:
            if error.status != 404:
                raise
            time.sleep(_POLL_S)  # the name is taken already, the container not yet there
            return
        if any(found.get(label) != labels[label] for label in _OWNER_LABELS):
            message = f"a container that is not this cluster's has the name {name} on this agent"
            raise LaunchError(message, permanent=False)
        remove_container(self._engine, name)

    def _start(self, kernel: Kernel, container_id: str, give_up_at: float) -> None:
        network = self.session.network
        overlay = network["driver"] == agent_names.OVERLAY
        while True:
            self._check_not_given_up()
            try:
                self._engine.start_container(container_id)
            except EngineError as error:
                if _AMBIGUOUS in str(error) and time.monotonic() < give_up_at:
                    self._remove_twins()
                    continue
                # A swarm's worker learns of an overlay only after a manager, perhaps at this moment, has made it.
                if overlay and f"{network['name']} not found" in str(error) and time.monotonic() < give_up_at:
                    time.sleep(_NETWORK_POLL_S)
                    continue
                raise LaunchError(_start_message(kernel, error), permanent=error.status == 400) from error
            return

    def _await_present(self, kernel: Kernel, seen: agent_names.SeenContainer) -> None:
        if self._is_released(kernel):
            return
        self._await_sshd(kernel, seen.id, time.monotonic() + self._manifest.start_timeout_s)

    def _await_sshd(self, kernel: Kernel, container_id: str, give_up_at: float) -> None:
        """Wait until the kernel's sshd greets; its command has not begun, so an end now is no end of that."""
        address, attempt = None, 0
        while True:
            if address is None or attempt % _INSPECT_EVERY == 0:
                container = self._engine.container(container_id)
                if container["State"]["Status"] in {"exited", "dead"}:
                    message = (
                        f"{kernel.name}: the container ended at once with exit code {container['State']['ExitCode']}"
                    )
                    raise LaunchError(message + self._last_line(container_id), permanent=False)
                address = self._address_of(container)
            if address and _greets(address, self._manifest.sshd_port):
                return
            self._check_not_given_up()
            if time.monotonic() > give_up_at:
                waited = self._manifest.start_timeout_s
                message = f"{kernel.name}: its sshd does not answer {waited} s after the start"
                raise LaunchError(message + self._last_line(container_id), permanent=False)
            attempt += 1
            time.sleep(_POLL_S)

    def _address_of(self, container: dict[str, Any]) -> str | None:
        network = self.session.network
        if network["driver"] != agent_names.OVERLAY:
            return container["NetworkSettings"]["Networks"][network["name"]]["IPAddress"] or None
        # A host cannot reach an overlay's addresses; each container on one is on this bridge as well.
        gateway = self._engine.network("docker_gwbridge")["Containers"].get(container["Id"])
        return gateway["IPv4Address"].partition("/")[0] if gateway else None

    def _last_line(self, container_id: str) -> str:
        lines = b"".join(self._engine.logs(container_id, tail="5")).decode(errors="replace").split("\n")
        lines = [" ".join(line.split()) for line in lines if line.strip()]
        return f": {lines[-1]}" if lines else ""

    def _check_not_given_up(self) -> None:
        if self._given_up.is_set():
            raise _GivenUpError


def resolved_folders(manifest: Manifest, kernel: Kernel) -> dict[str, str]:
    """Return folder -> its real path on this host, or raise LaunchError: a user's mistake, which no retry mends."""
    try:
        for mount in kernel.spec["mounts"]:
            check_target(mount["target"], manifest.runtime_path)
        return {
            mount["folder"]: resolve_folder(manifest.folders_root, mount["folder"]) for mount in kernel.spec["mounts"]
        }
    except FolderError as error:
        raise LaunchError(f"{kernel.name}: {error}", permanent=True) from error


def _greets(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), _CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(_GREETING_TIMEOUT_S)
            greeting = connection.recv(64)
            # Without a greeting back sshd would log an error in the kernel's output.
            connection.sendall(b"SSH-2.0-muster\r\n")
    except OSError:
        return False
    return greeting.startswith(b"SSH-2.0")


def _as_launch_error(error: EngineError) -> LaunchError:
    return LaunchError(str(error), permanent=error.status == 400)


def _start_message(kernel: Kernel, error: EngineError) -> str:
    taken = _ADDRESS_IN_USE.search(str(error))
    if taken:
        return f"{kernel.name}: port {taken.group(1)} is in use on this agent"
    return f"{kernel.name}: {error}"


def _network_message(session: Session, error: EngineError) -> str:
    name = session.network["name"]
    if "address pool" in str(error):
        return f"network {name}: the engine has no subnet left on this agent (roles/docker_engine widens its pools)"
    return f"network {name}: {error}"
