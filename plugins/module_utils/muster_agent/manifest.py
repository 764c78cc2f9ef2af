"""The manifest: everything that one agent should run for one cluster (docs/agent-contract.md)."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from .folders.owned import Entry, parse_entry

VERSION = 1
LAUNCH, RELEASE, KEEP, STOP = "launch", "release", "keep", "stop"
# These become parts of paths and of names in the engine.
_CLUSTER = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KERNEL_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_CPU_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_KEY_FILE_NAME = re.compile(rf"(secrets/)?{_FILE_NAME.pattern}")
_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./-]{0,95}")
_LEASED_GPU = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,95}")
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_./=-]{0,159}")
_DEVICE_DRIVER = re.compile(r"nvidia|cdi")
_URL_PATH = re.compile(r"/[!-~]*")
_APP = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
_PATH = re.compile(r"/[^\0]+")


class ManifestError(Exception):
    """The manifest is not one that this agent understands."""


class Kernel(NamedTuple):
    """One container of a session; `spec` is the manifest's entry, with no more than id and name unless launched."""

    id: str
    name: str
    spec: dict[str, Any]


class Session(NamedTuple):
    id: str
    name: str
    generation: str
    desired: str
    release: bool  # of a launch: whether the commands begin as soon as all kernels here answer
    network: dict[str, str]
    kernels: list[Kernel]
    notice: str = ""  # of one that is kept: what its users are to read; empty for nothing
    folders: tuple[Entry, ...] = ()  # with an owner; made before a launch


class Overlay(NamedTuple):
    session_id: str
    name: str
    generation: str
    mtu: int | None
    encrypted: bool


class Manifest(NamedTuple):
    cluster: str
    generation: int
    runtime_path: str
    sshd_port: int
    folders_root: str
    start_timeout_s: int
    stop_grace_s: int
    log_max_bytes: int
    overlays: list[Overlay] | None  # all that shall exist, for the one agent that keeps them
    sessions: list[Session]


def parse_manifest(data: dict[str, Any]) -> Manifest:
    """Return the manifest, or raise ManifestError with one line."""
    if data.get("version") != VERSION:
        raise ManifestError(f"this agent understands manifests of version {VERSION}, not {data.get('version')!r}")
    try:
        return Manifest(
            cluster=_matching(_CLUSTER, data["cluster"], "a cluster's name"),
            generation=int(data["generation"]),
            runtime_path=data["runtime_path"],
            sshd_port=int(data["sshd_port"]),
            folders_root=data["folders_root"],
            start_timeout_s=int(data["start_timeout_s"]),
            stop_grace_s=int(data["stop_grace_s"]),
            log_max_bytes=int(data["log_max_bytes"]),
            overlays=None if data["overlays"] is None else [_overlay(entry) for entry in data["overlays"]],
            sessions=[_session(entry) for entry in data["sessions"]],
        )
    except KeyError as error:
        raise ManifestError(f"the manifest lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise ManifestError(f"the manifest has a value of the wrong kind: {error}") from error


def _overlay(entry: dict[str, Any]) -> Overlay:
    return Overlay(
        session_id=_matching(_ID, entry["session_id"], "a session's id"),
        name=entry["name"],
        generation=str(int(entry["generation"])),
        mtu=None if entry["mtu"] is None else int(entry["mtu"]),
        encrypted=bool(entry["encrypted"]),
    )


def _session(entry: dict[str, Any]) -> Session:
    desired = entry["desired"]
    if desired not in {LAUNCH, RELEASE, KEEP, STOP}:
        raise ManifestError(f"a session is launch, release, keep or stop, not {desired!r}")
    return Session(
        id=_matching(_ID, entry["id"], "a session's id"),
        name=entry["name"],
        generation=str(entry["generation"]),
        desired=desired,
        release=desired == LAUNCH and bool(entry["release"]),
        network=entry["network"],
        kernels=[_kernel(kernel, launched=desired == LAUNCH) for kernel in entry["kernels"]],
        notice=str(entry.get("notice") or ""),
        folders=tuple(parse_entry(folder) for folder in entry.get("folders", ())),
    )


def _kernel(entry: dict[str, Any], *, launched: bool) -> Kernel:
    if launched:
        for name in ("image", "command", "env", "user", "resources", "gpu_access", "mounts", "publish", "files"):
            if name not in entry:
                raise KeyError(name)
        for name in entry["files"]:
            _matching(_KEY_FILE_NAME, name, "a file's name")
        if entry["resources"].get("cpuset") is not None:
            _matching(_CPU_LIST, entry["resources"]["cpuset"], "a list of CPUs")
        for app in entry["apps"]:
            _check_app(app)
        for gpu in entry["gpus"]:
            _check_gpu(gpu)
        if entry["gpu_access"] is not None:
            _check_gpu_access(entry["gpu_access"])
    return Kernel(
        id=_matching(_ID, entry["id"], "a kernel's id"),
        name=_matching(_KERNEL_NAME, entry["name"], "a kernel's name"),
        spec=entry,
    )


def _check_app(app: dict[str, Any]) -> None:
    _matching(_APP, app["name"], "an app's name")
    int(app["port"])
    if app["health"] is not None:
        _matching(_URL_PATH, app["health"], "a path of a URL")
    if "starts" not in app:
        raise KeyError("starts")


def _check_gpu(gpu: dict[str, Any]) -> None:
    _matching(_GPU, gpu["uuid"], "a GPU's UUID")
    for name in ("mem_bytes", "compute"):
        if gpu[name] is not None:
            int(gpu[name])


def _check_gpu_access(access: dict[str, Any]) -> None:
    if access["devices"] is not None:
        _matching(_DEVICE_DRIVER, access["devices"]["driver"], "a device driver: nvidia or cdi")
        for device in access["devices"]["ids"]:
            _matching(_DEVICE, device, "a device's id")
    for name, source in access["libraries"].items():
        _matching(_FILE_NAME, name, "a library's name")
        _matching(_PATH, source, "an absolute path")
    for mount in access["mounts"]:
        _matching(_PATH, mount["source"], "an absolute path")
        _matching(_PATH, mount["target"], "an absolute path")
    for gpu_uuid in access["leases"]:
        _matching(_LEASED_GPU, gpu_uuid, "the UUID of a GPU with a lease")
    for name in ("env", "usage"):
        if name not in access:
            raise KeyError(name)


def _matching(pattern: re.Pattern[str], value: str, what: str) -> str:
    if not pattern.fullmatch(value):
        raise ManifestError(f"{value!r} is not {what}")
    return value
