"""The manifest: everything that one agent should run for one cluster (docs/agent-contract.md)."""

from __future__ import annotations

from typing import Any, NamedTuple

from .folders.owned import Entry, parse_entry
from .manifest_schema import MANIFEST
from .names import OVERLAY
from .schema_check import SchemaError, check

VERSION = MANIFEST["properties"]["version"]["const"]
LAUNCH, RELEASE, KEEP, STOP = "launch", "release", "keep", "stop"


class ManifestError(Exception):
    """The manifest is not one that this agent understands."""


class Kernel(NamedTuple):
    """A container of a session. `spec` is the manifest's entry; it has only id and name unless it is launched."""

    id: str
    name: str
    spec: dict[str, Any]


class Signal(NamedTuple):
    """The signal, by number, that the commands of these kernels shall have got so many times."""

    number: int
    times: int
    kernels: frozenset[str]


class Session(NamedTuple):
    id: str
    name: str
    generation: str
    desired: str
    release: bool  # of a launch: whether the commands begin as soon as all kernels here answer
    network: dict[str, str]
    kernels: list[Kernel]
    public_key: str = ""  # of a launch: its kernels'
    notice: str = ""  # of one that is kept: what its users are to read; empty for nothing
    signal: Signal | None = None  # of one that is kept
    folders: tuple[Entry, ...] = ()  # with an owner; made before a launch

    @property
    def is_lent_to(self) -> bool:
        """Return whether a network is lent to it: a single kernel needs none that bears its name."""
        return self.network["driver"] != OVERLAY and len(self.kernels) == 1


class Overlay(NamedTuple):
    session_id: str
    name: str
    generation: str
    mtu: int | None
    encrypted: bool


class Manifest(NamedTuple):
    cluster: str
    generation: int
    databases: list[str]  # the ids of the control node's, and then of those that it continues
    runtime_path: str
    sshd_port: int
    folders_root: str
    begin_by_s: int | None  # by the host's uptime; commands that did not begin until then do not begin
    start_timeout_s: int
    stop_grace_s: int
    log_max_bytes: int
    overlays: list[Overlay] | None  # all that shall exist, for the one agent that keeps them
    sessions: list[Session]
    kept_spools: frozenset[str]  # session ids


def parse_manifest(data: object) -> Manifest:
    """Return the manifest, or raise ManifestError with one line."""
    if not isinstance(data, dict) or data.get("version") != VERSION:
        version = data.get("version") if isinstance(data, dict) else None
        raise ManifestError(f"this agent understands manifests of version {VERSION}, not {version!r}")
    try:
        check(data, MANIFEST, "the manifest")
        return Manifest(
            cluster=data["cluster"],
            generation=data["generation"],
            databases=data["databases"],
            runtime_path=data["runtime_path"],
            sshd_port=data["sshd_port"],
            folders_root=data["folders_root"],
            begin_by_s=data["begin_by_s"],
            start_timeout_s=data["start_timeout_s"],
            stop_grace_s=data["stop_grace_s"],
            log_max_bytes=data["log_max_bytes"],
            overlays=None if data["overlays"] is None else [_overlay(entry) for entry in data["overlays"]],
            sessions=[_session(entry) for entry in data["sessions"]],
            kept_spools=frozenset(data["kept_spools"]),
        )
    except SchemaError as error:
        raise ManifestError(str(error)) from error
    except ValueError as error:  # of a folder with an owner
        raise ManifestError(f"the manifest: {error}") from error


def _overlay(entry: dict[str, Any]) -> Overlay:
    return Overlay(
        session_id=entry["session_id"],
        name=entry["name"],
        generation=str(entry["generation"]),
        mtu=entry["mtu"],
        encrypted=entry["encrypted"],
    )


def _session(entry: dict[str, Any]) -> Session:
    return Session(
        id=entry["id"],
        name=entry["name"],
        generation=str(entry["generation"]),
        desired=entry["desired"],
        release=entry.get("release", False),
        network=entry["network"],
        kernels=[_kernel(kernel, entry.get("files", {})) for kernel in entry["kernels"]],
        public_key=entry.get("public_key", ""),
        notice=entry.get("notice") or "",
        signal=_signal(entry.get("signal")),
        folders=tuple(parse_entry(folder) for folder in entry.get("folders", ())),
    )


def _signal(entry: dict[str, Any] | None) -> Signal | None:
    if entry is None:
        return None
    return Signal(entry["signal"], entry["count"], frozenset(entry["kernels"]))


def _kernel(entry: dict[str, Any], shared_files: dict[str, Any]) -> Kernel:
    spec = {**entry, "files": {**shared_files, **entry["files"]}} if "files" in entry else entry
    return Kernel(entry["id"], entry["name"], spec)
