"""The manifest: everything that one agent should run for one cluster (docs/agent-contract.md)."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

VERSION = 1
LAUNCH, KEEP, STOP = "launch", "keep", "stop"
# These become parts of paths and of names in the engine.
_CLUSTER = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KERNEL_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")


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
    network: dict[str, str]
    kernels: list[Kernel]


class Manifest(NamedTuple):
    cluster: str
    generation: int
    runtime_path: str
    sshd_port: int
    folders_root: str
    start_timeout_s: int
    stop_grace_s: int
    log_max_bytes: int
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
            sessions=[_session(entry) for entry in data["sessions"]],
        )
    except KeyError as error:
        raise ManifestError(f"the manifest lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise ManifestError(f"the manifest has a value of the wrong kind: {error}") from error


def _session(entry: dict[str, Any]) -> Session:
    desired = entry["desired"]
    if desired not in {LAUNCH, KEEP, STOP}:
        raise ManifestError(f"a session is launch, keep or stop, not {desired!r}")
    return Session(
        id=_matching(_ID, entry["id"], "a session's id"),
        name=entry["name"],
        generation=str(entry["generation"]),
        desired=desired,
        network=entry["network"],
        kernels=[_kernel(kernel, launched=desired == LAUNCH) for kernel in entry["kernels"]],
    )


def _kernel(entry: dict[str, Any], *, launched: bool) -> Kernel:
    if launched:
        for name in ("image", "command", "env", "user", "resources", "mounts", "publish", "files"):
            if name not in entry:
                raise KeyError(name)
        for name in entry["files"]:
            _matching(_FILE_NAME, name, "a file's name")
    return Kernel(
        id=_matching(_ID, entry["id"], "a kernel's id"),
        name=_matching(_KERNEL_NAME, entry["name"], "a kernel's name"),
        spec=entry,
    )


def _matching(pattern: re.Pattern[str], value: str, what: str) -> str:
    if not pattern.fullmatch(value):
        raise ManifestError(f"{value!r} is not {what}")
    return value
