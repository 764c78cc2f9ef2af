"""Key directories: what a kernel finds under /run/muster, kept in memory only."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .agent_names import KEY_ROOT

if TYPE_CHECKING:
    from .agent_names import ClusterPaths

_IN_MEMORY = {"tmpfs", "ramfs"}
_GO = "go"


class KeyDirectoryError(Exception):
    """There is no place in memory for keys."""


def ensure_memory_backed() -> None:
    """Make /run/muster a directory that only root may enter and that no disk ever sees."""
    KEY_ROOT.mkdir(mode=0o700, exist_ok=True)
    KEY_ROOT.chmod(0o700)
    mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    if file_system_of(str(KEY_ROOT), mounts) not in _IN_MEMORY:
        options = "mode=0700,size=64m,nosuid,nodev,noexec"
        mount = ["mount", "-t", "tmpfs", "-o", options, "muster-keys", str(KEY_ROOT)]
        done = subprocess.run(mount, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise KeyDirectoryError(f"no tmpfs can be mounted at {KEY_ROOT}: {' '.join(done.stderr.split())}")


def file_system_of(path: str, mountinfo: str) -> str:
    """Return the type of the file system that holds a path."""
    best, kind = -1, ""
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        point = mount.split(" ")[4]
        holds = path == point or path.startswith(point.rstrip("/") + "/")
        if holds and len(point) >= best:
            best, kind = len(point), source.split(" ")[0]
    return kind


def write_keys(directory: Path, files: dict[str, dict[str, str]], uid: int, gid: int) -> None:
    """Write a kernel's files, each with its mode from the first byte on, owned by the session's user."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # of a launch that was given up
        (directory / _GO).unlink()
    for name, entry in files.items():
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(entry["content"])
            os.fchown(descriptor, uid, gid)
            os.fchmod(descriptor, int(entry["mode"], 8))
    os.chown(directory, uid, gid)


def kernels_with_keys(paths: ClusterPaths) -> dict[str, set[str]]:
    """Return session id -> names of the kernels that have a key directory."""
    if not paths.keys.is_dir():
        return {}
    return {session.name: {kernel.name for kernel in session.iterdir()} for session in paths.keys.iterdir()}


def release(paths: ClusterPaths, session_id: str, kernel_name: str, generation: str) -> None:
    """Let a kernel's command begin: its entrypoint waits for this file."""
    directory = paths.kernel_keys(session_id, kernel_name)
    partial = directory / f"{_GO}.new"
    partial.write_text(generation)
    partial.chmod(0o644)
    partial.replace(directory / _GO)


def is_released(paths: ClusterPaths, session_id: str, kernel_name: str, generation: str) -> bool:
    try:
        return (paths.kernel_keys(session_id, kernel_name) / _GO).read_text() == generation
    except FileNotFoundError:
        return False


def remove_keys(directory: Path) -> None:
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
