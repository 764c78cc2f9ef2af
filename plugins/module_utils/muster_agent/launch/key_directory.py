"""Key directories: what a kernel finds under /run/muster, kept in memory only."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from ..names import KEY_ROOT
from .notices import forget_notice
from .tmpfs import ensure_in_memory

if TYPE_CHECKING:
    from pathlib import Path

    from ..names import ClusterPaths

_GO = "go"
_SECRETS = "secrets"


def ensure_memory_backed() -> None:
    """Make /run/muster a directory that only root may enter and that no disk ever sees."""
    ensure_in_memory(KEY_ROOT, 0o700)


def write_keys(directory: Path, files: dict[str, dict[str, str]], uid: int, gid: int) -> None:
    """Write a kernel's files, each with its mode from the first byte on, owned by the session's user.

    A secret's name is `secrets/NAME`.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):  # of a launch that was given up
        (directory / _GO).unlink()
    forget_notice(directory)
    shutil.rmtree(directory / _SECRETS, ignore_errors=True)  # of an earlier launch, which had others perhaps
    if any("/" in name for name in files):
        (directory / _SECRETS).mkdir(mode=0o700)
        os.chown(directory / _SECRETS, uid, gid)
    for name, entry in files.items():
        descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(entry["content"])
            os.fchown(descriptor, uid, gid)
            os.fchmod(descriptor, int(entry["mode"], 8))
    os.chown(directory, uid, gid)


def kernels_with_keys(paths: ClusterPaths) -> dict[str, dict[str, str]]:
    """Return session id -> name of a kernel that has a key directory -> generation that was released ("": none)."""
    if not paths.keys.is_dir():
        return {}
    return {
        session.name: {kernel.name: released_generation(kernel) for kernel in session.iterdir()}
        for session in paths.keys.iterdir()
    }


def released_generation(directory: Path) -> str:
    """Return the generation whose command may begin, by a kernel's key directory; empty if none may."""
    try:
        return (directory / _GO).read_text("ascii")
    except FileNotFoundError:
        return ""


def release(paths: ClusterPaths, session_id: str, kernel_name: str, generation: str) -> None:
    """Let a kernel's command begin: its entrypoint waits for this file."""
    directory = paths.kernel_keys(session_id, kernel_name)
    partial = directory / f"{_GO}.new"
    partial.write_text(generation)
    partial.chmod(0o644)
    partial.replace(directory / _GO)
