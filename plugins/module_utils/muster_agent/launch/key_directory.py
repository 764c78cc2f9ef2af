"""Key directories: what a kernel finds under /run/muster, kept in memory only."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from ..names import KEY_ROOT
from .end_signals import forget_signals
from .notices import forget_notice
from .tmpfs import ensure_in_memory

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from ..names import ClusterPaths

_GO = "go"
_WAKE = "wake"
_SECRETS = "secrets"
# Nothing else that somebody puts there may make a report one that the contract does not allow.
_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


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
    forget_signals(directory)
    shutil.rmtree(directory / _SECRETS, ignore_errors=True)  # of an earlier launch, which had others perhaps
    if any("/" in name for name in files):
        (directory / _SECRETS).mkdir(mode=0o700)
        os.chown(directory / _SECRETS, uid, gid)
    for name, entry in files.items():
        _write(directory / name, entry["content"], uid, gid, int(entry["mode"], 8))
    _make_pipe(directory / _WAKE, uid, gid)
    os.chown(directory, uid, gid)


def _write(path: Path, content: str, uid: int, gid: int, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            os.fchown(descriptor, uid, gid)
            os.fchmod(descriptor, mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # a write does not name its file


def _make_pipe(path: Path, uid: int, gid: int) -> None:
    """Make the pipe at which an entrypoint waits for its release."""
    with suppress(FileExistsError):  # of a launch that was given up
        os.mkfifo(path, 0o600)
    os.chown(path, uid, gid, follow_symlinks=False)


def _wake(directory: Path) -> None:
    """Let an entrypoint look for its release that waits for it; one that does not wait yet looks before it does."""
    with suppress(OSError):
        descriptor = os.open(directory / _WAKE, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            os.write(descriptor, b"\n")
        finally:
            os.close(descriptor)


def kernels_with_keys(paths: ClusterPaths) -> dict[str, dict[str, str]]:
    """Return session id -> name of a kernel that has a key directory -> generation that was released ("": none).

    A run that removes sessions meanwhile disturbs nothing.
    """
    if not paths.keys.is_dir():
        return {}
    found: dict[str, dict[str, str]] = {}
    for session in paths.keys.iterdir():
        with suppress(FileNotFoundError, NotADirectoryError):
            kernels = [kernel for kernel in session.iterdir() if kernel.is_dir()]
            found[session.name] = {kernel.name: released_generation(kernel) for kernel in kernels}
    return found


def sessions_with_keys(paths: ClusterPaths) -> list[str]:
    """Return the ids of the sessions that have a key directory, be it empty, in order.

    By it the control node finds what a run that was killed left: keys are written first, and removed last.
    """
    if not paths.keys.is_dir():
        return []
    return sorted(path.name for path in paths.keys.iterdir() if _ID.fullmatch(path.name) and path.is_dir())


def released_generation(directory: Path) -> str:
    """Return the generation whose command may begin, by a kernel's key directory; empty if none may."""
    try:
        return (directory / _GO).read_text("ascii")
    except FileNotFoundError:
        return ""


class HalfReleasedError(Exception):
    """The error of a gang of which only some kernels were released."""


def release(paths: ClusterPaths, session_id: str, kernel_names: Collection[str], generation: str) -> None:
    """Let these kernels' commands begin: their entrypoints wait for the file `go`.

    Raises OSError when none of them begins, and HalfReleasedError.
    """
    prepared: list[Path] = []
    try:
        for name in kernel_names:
            partial = paths.kernel_keys(session_id, name) / f"{_GO}.new"
            prepared.append(partial)
            _write(partial, generation, 0, 0, 0o644)
    except OSError:
        for partial in prepared:
            with suppress(OSError):
                partial.unlink()
        raise
    # Renaming needs no room, so nothing is left that a full file system could refuse.
    for number, partial in enumerate(prepared):
        try:
            partial.replace(partial.with_name(_GO))
        except OSError as error:
            if number == 0:
                raise
            raise HalfReleasedError(f"only {number} of {len(prepared)} kernels could be released: {error}") from error
        _wake(partial.parent)
