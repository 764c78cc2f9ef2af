"""Launching a session's kernels on this host: all at once, and all or none."""

from __future__ import annotations

import re
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import names
from ..engine import container_spec, kernel_cgroup, layer_files, mount_check
from ..engine.api import EngineApi, EngineError
from ..engine.open_files import most_open_files
from ..engine.removal import remove_container
from ..folders.mounted import FolderError, check_target, resolve_folder
from ..folders.owned import make, place
from ..folders.staging import StagedFolder, stage
from ..gpus import fgpu_state, gpu_access
from . import account_files, key_directory
from .beginning import let_begin
from .bridge import make_bridge
from .kernel_sshd import SshdWait
from .launch_error import GivenUpError, LaunchError, as_launch_error, first_failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future, ThreadPoolExecutor

    from ..engine.layer_limit import LayerLimits
    from ..manifest import Kernel, Manifest, Session
    from ..plan import Launch
    from .host_ids import HostIds

_OWNER_LABELS = (names.LABEL_CLUSTER, names.LABEL_SESSION)
_POLL_S = 0.01
_NETWORK_POLL_S = 0.25
_ATTACH_FAILED = "Could not attach to network"
_NO_SUCH_CPUS = re.compile(r"CPUs are not available\b.*\bavailable: (.*)")
_NO_DEVICE_DRIVER = "could not select device driver"
_RANGE_USED_UP = "all ports are allocated"
_ADDRESS_IN_USE = re.compile(r"(\S+):(\d+)\S* (?:failed: port is already allocated|bind: address already in use)")
# As engines from Docker 27 on say it: with the port that was tried first, or without one.
_HOST = r"(\[[^\]]*\]|[^\s:]+)"
_PORT_IN_USE = re.compile(rf"bind host port (?:(\d+) )?(?:for )?{_HOST}:(\d+)(?:-\d+)?[:/]\S*: address already in use")


class Image(NamedTuple):
    id: str
    environment: list[str]
    size_bytes: int


class Images:
    """The images of a run: each looked up and read once, whatever the number of kernels."""

    def __init__(self, engine: EngineApi, cluster: str) -> None:
        self._engine = engine
        self._cluster = cluster
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._images: dict[str, Image] = {}

    def get(self, reference: str) -> Image:
        """Return an image; raises LaunchError when it is not there."""
        with self._lock_of(reference):
            if reference not in self._images:
                self._images[reference] = self._find(reference)
            return self._images[reference]

    def facts(self, image: Image, home: str, paths: set[str]) -> account_files.ImageFacts:
        with self._lock_of(image.id):
            return account_files.image_facts(self._engine, self._cluster, image.id, home, paths)

    def _lock_of(self, key: str) -> threading.Lock:
        with self._lock:
            return self._locks.setdefault(key, threading.Lock())

    def _find(self, reference: str) -> Image:
        try:
            found = self._engine.image(reference)
        except EngineError as error:
            if error.status != 404:
                raise
            raise LaunchError(f"image {reference} is not on this agent", permanent=False) from error
        environment = found["Config"].get("Env") or []
        # The engine takes these, and its runtime refuses them, or hangs for ever where it has much to say of one.
        if any("\0" in entry for entry in environment):
            message = f"image {reference} has an environment variable with a NUL byte, and no program can have one"
            raise LaunchError(message, permanent=True)
        return Image(found["Id"], environment, found.get("Size") or 0)


def check_launch(manifest: Manifest, launch: Launch, images: Images) -> list[tuple[Kernel, dict[str, str]]]:
    """Return the missing kernels, each with folder -> its real path; raises LaunchError for what must fail."""
    if launch.obstacle:
        raise LaunchError(launch.obstacle, permanent=False)
    missing = [(kernel, _resolved_folders(manifest, kernel)) for kernel in launch.missing]
    for kernel in launch.missing:
        _check_gpu_sources(kernel)
        images.get(kernel.spec["image"])
    return missing


class GangLaunch:
    """A session's launch on this host. It begins at once; `failure` waits for it.

    `overlay` is the making of its network, where this host makes it in this run. `spare` are networks that may be
    removed to make room for it.
    """

    def __init__(
        self,
        engine: EngineApi,
        images: Images,
        layers: LayerLimits,
        ids: HostIds,
        manifest: Manifest,
        launch: Launch,
        pool: ThreadPoolExecutor,
        overlay: Future[None] | None,
        spare: list[str],
    ) -> None:
        self._engine = engine
        self._images = images
        self._layers = layers
        self._ids = ids
        self._manifest = manifest
        self.launch = launch
        self.session = launch.session
        self._paths = names.ClusterPaths(manifest.cluster)
        self._spare = spare
        self._given_up = threading.Event()
        self._sshds = SshdWait(engine, manifest, self.session, self._given_up)
        self._refusal: BaseException | None = None
        self._kernels: list[Future[None]] = []
        try:
            missing = check_launch(manifest, launch, images)
            _make_folders(manifest, self.session)
            self._open_files = most_open_files()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this session's alone
            self._refusal = as_launch_error(error)
            return
        self._network = overlay or pool.submit(self._guarded, self._make_bridge)
        steps = [partial(self._launch_kernel, *pair) for pair in missing]
        steps += [partial(self._await_present, *pair) for pair in launch.present]
        self._kernels = [pool.submit(self._guarded, step) for step in steps]

    def failure(self) -> BaseException | None:
        """Return why the gang failed, or None when all of its kernels here answer and may begin if they shall."""
        failure = self._refusal or first_failure([self._network, *self._kernels])
        if failure is not None or not self.session.release:
            return failure
        try:
            waiting = [kernel.name for kernel in self.session.kernels if not self._is_released(kernel)]
        except OSError as error:
            return as_launch_error(error)
        return let_begin(self._manifest, self.session, waiting)

    def _is_released(self, kernel: Kernel) -> bool:
        keys = self._paths.kernel_keys(self.session.id, kernel.name)
        return key_directory.released_generation(keys) == self.session.generation

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException:  # whatever it was, the other kernels need not go on; it is raised again
            self._given_up.set()
            raise

    def _make_bridge(self) -> None:
        if self.launch.network_missing:
            make_bridge(self._engine, self._manifest.cluster, self.session, self._spare)

    def _launch_kernel(self, kernel: Kernel, folders: dict[str, str]) -> None:
        manifest, session, user = self._manifest, self.session, kernel.spec["user"]
        access = kernel.spec["gpu_access"]
        image = self._images.get(kernel.spec["image"])
        facts = self._images.facts(image, user["home"], gpu_access.image_paths(access))
        if file := facts.file_in_the_way(user["home"]):
            message = f"{kernel.name}: image {kernel.spec['image']} has a file {file}, and that has to be a directory"
            raise LaunchError(message, permanent=True)
        shell = facts.login_shell(manifest.runtime_path)
        environment = container_spec.complete_environment(kernel, image.environment, manifest.runtime_path, shell)
        files = dict(kernel.spec["files"])
        if "sshd_config" in files:
            content = container_spec.sshd_config_with(files["sshd_config"]["content"], environment)
            files["sshd_config"] = {**files["sshd_config"], "content": content}
        keys = self._paths.kernel_keys(session.id, kernel.name)
        key_directory.write_keys(keys, files, *self._ids.owner(kernel))
        if fgpu_state.is_needed(kernel):  # after the keys: without keys there is no such state either
            fgpu_state.make_state(self._paths, session.id, kernel)
        staged = self._staged_folders(kernel, folders)
        sources = {folder: found.path for folder, found in staged.items()}
        gpu_binds = gpu_access.binds(manifest.cluster, session.id, kernel, facts.paths)
        storage = self._layers.options(kernel.spec["resources"]["disk_bytes"], image.size_bytes)
        body = container_spec.container_body(manifest, session, kernel, environment, sources, gpu_binds, storage)
        place = kernel_cgroup.Place(manifest.cluster, session.id, session.generation, kernel.name)
        body["HostConfig"]["CgroupParent"] = kernel_cgroup.parent(self._engine, place)
        body["HostConfig"]["Ulimits"] = [{"Name": "nofile", "Soft": self._open_files, "Hard": self._open_files}]
        self._check_not_given_up()
        name = names.container_name(session.id, kernel.name)
        container_id = self._create(kernel, name, body, time.monotonic() + manifest.start_timeout_s)
        targets = [mount["target"] for mount in kernel.spec["mounts"]]
        links = gpu_access.links_in_the_way(access, facts.paths)
        tmpfs = list(body["HostConfig"].get("Tmpfs", ()))
        known = files["known_hosts"]["content"] if "known_hosts" in files else ""
        account = account_files.account_tar(facts, user, environment, known, targets, links, tmpfs)
        self._put_account(container_id, account, facts.folders)
        self._network.result()
        give_up_at = time.monotonic() + manifest.start_timeout_s
        self._start(kernel, container_id, give_up_at)
        self._check_mounts(kernel, container_id, [staged[mount["folder"]] for mount in kernel.spec["mounts"]])
        self._sshds.until_it_listens(kernel, container_id, give_up_at)

    def _put_account(self, container_id: str, archive: bytes, folders: dict[str, Any]) -> None:
        """Put the account's files into the container: into its layer if this host can, otherwise by the engine."""
        if not self._ids.are_mapped:
            layer = layer_files.layer_of(self._engine.container(container_id))
            if layer is not None and layer_files.unpack(archive, layer, folders):
                return
        self._engine.put_archive(container_id, archive)

    def _staged_folders(self, kernel: Kernel, folders: dict[str, str]) -> dict[str, StagedFolder]:
        try:
            directory = self._paths.kernel_mounts(self.session.id, kernel.name)
            return stage(directory, self._manifest.folders_root, folders, _read_only(kernel), self._ids.bind)
        except FolderError as error:
            raise LaunchError(f"{kernel.name}: {error}", permanent=False) from error

    def _check_mounts(self, kernel: Kernel, container_id: str, staged: list[StagedFolder]) -> None:
        """Raise LaunchError where an engine that does not see this host's mounts gave the kernel others."""
        if staged:
            pid = self._engine.container(container_id)["State"]["Pid"]
            if pid and not mount_check.are_mounted([folder.identity for folder in staged], pid):
                message = f"{kernel.name}: the engine does not see the mounts below {names.MOUNT_ROOT} on this agent"
                raise LaunchError(message, permanent=False)

    def _create(self, kernel: Kernel, name: str, body: dict[str, Any], give_up_at: float) -> str:
        while True:
            try:
                return self._engine.create_container(body, name)
            except EngineError as error:
                if "StorageOpt" in body["HostConfig"] and self._layers.are_refused_by(error):
                    del body["HostConfig"]["StorageOpt"]
                    continue
                if error.status != 409 or time.monotonic() > give_up_at:
                    if no_cpus := _NO_SUCH_CPUS.search(str(error)):
                        # They were there when the agent was last observed: a retry sees it as it is then.
                        raise LaunchError(_cpus_message(kernel, no_cpus.group(1)), permanent=False) from error
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
        taken: set[str] = set()
        while True:
            self._check_not_given_up()
            try:
                self._engine.start_container(container_id)
            except EngineError as error:
                if time.monotonic() > give_up_at or not self._may_start_now(str(error), kernel, taken):
                    message = _start_message(self.session, kernel, str(error))
                    raise LaunchError(message, permanent=error.status == 400) from error
            else:
                return

    def _may_start_now(self, error: str, kernel: Kernel, taken: set[str]) -> bool:
        """Mend what kept the container from starting. Return whether to try again; `taken` are the ports tried."""
        if self.session.network["driver"] == names.OVERLAY and _ATTACH_FAILED in error:
            # Its keeper is perhaps making it at this moment, or the swarm electing a leader.
            time.sleep(_NETWORK_POLL_S)
            return True
        # The engine takes the next port of a range at every try, but knows only the ports that it gave away itself.
        address = taken_address(error)
        if address and address not in taken and _port_ranges(kernel):
            taken.add(address)
            return True
        return False

    def _await_present(self, kernel: Kernel, seen: names.SeenContainer) -> None:
        if not self._is_released(kernel):
            self._sshds.until_it_listens(kernel, seen.id, time.monotonic() + self._manifest.start_timeout_s)

    def _check_not_given_up(self) -> None:
        if self._given_up.is_set():
            raise GivenUpError


def _resolved_folders(manifest: Manifest, kernel: Kernel) -> dict[str, str]:
    """Return folder -> its real path on this host, or raise LaunchError: a user's mistake, which no retry mends."""
    libraries = gpu_access.driver_places(kernel.spec["gpu_access"])
    try:
        for mount in kernel.spec["mounts"]:
            check_target(mount["target"], manifest.runtime_path, libraries)
        return {
            mount["folder"]: place(manifest.folders_root, mount["folder"])
            if mount.get("owned")
            else resolve_folder(manifest.folders_root, mount["folder"])
            for mount in kernel.spec["mounts"]
        }
    except FolderError as error:
        raise LaunchError(f"{kernel.name}: {error}", permanent=True) from error


def _read_only(kernel: Kernel) -> set[str]:
    """Return the folders that the kernel mounts read-only wherever it mounts them."""
    mounts = kernel.spec["mounts"]
    written = {mount["folder"] for mount in mounts if not mount.get("read_only")}
    return {mount["folder"] for mount in mounts} - written


def _make_folders(manifest: Manifest, session: Session) -> None:
    try:
        for folder in session.folders:
            make(manifest.folders_root, folder)
    except FolderError as error:
        raise LaunchError(str(error), permanent=False) from error


def _check_gpu_sources(kernel: Kernel) -> None:
    missing = gpu_access.missing_source(kernel.spec["gpu_access"])
    if missing:
        message = f"{kernel.name}: {missing}, which its GPUs need, is not on this agent (roles/fgpu puts it there)"
        raise LaunchError(message, permanent=False)


def _cpus_message(kernel: Kernel, available: str) -> str:
    desired = kernel.spec["resources"]["cpuset"]
    return (
        f"{kernel.name}: CPUs {desired} are requested, and the engine of this agent has {available}:"
        " the others are offline or kept from it"
    )


def _port_ranges(kernel: Kernel) -> list[str]:
    return [str(publish["host_port"]) for publish in kernel.spec["publish"] if "-" in str(publish["host_port"])]


def taken_address(error: str) -> str:
    """Return the address and port that the engine names as in use; empty if its error is another one."""
    found = _ADDRESS_IN_USE.search(error)
    if found:
        return ":".join(found.groups())
    found = _PORT_IN_USE.search(error)
    return f"{found.group(2)}:{found.group(1) or found.group(3)}" if found else ""


def _start_message(session: Session, kernel: Kernel, error: str) -> str:
    ranges = _port_ranges(kernel)
    taken = taken_address(error)
    if ranges and (taken or _RANGE_USED_UP in error):
        return f"{kernel.name}: no port of {', '.join(ranges)} is free on this agent"
    if taken:
        return f"{kernel.name}: port {taken} is in use on this agent"
    if _NO_DEVICE_DRIVER in error:
        return f"{kernel.name}: the engine of this agent cannot give GPUs to containers (roles/fgpu says why): {error}"
    name = session.network["name"]
    if f"{name} not found" in error:
        return f"{kernel.name}: overlay network {name} is not there: no manager of the swarm has made it"
    if _ATTACH_FAILED in error:
        return f"{kernel.name}: overlay network {name} cannot be joined, no manager of the swarm answers: {error}"
    return f"{kernel.name}: {error}"
