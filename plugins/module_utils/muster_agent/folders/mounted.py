"""A mount's folder on this host: under the folders' root even when every symbolic link is followed."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# The paths that a mount must not cover, since a kernel needs them.
RESERVED_TARGETS = (
    "/",
    "/dev",
    "/etc",
    "/opt/muster/driver",
    "/opt/muster/fgpu",
    "/proc",
    "/run/fgpu",
    "/run/muster",
    "/run/muster-apps",
    "/sys",
)


# Below the folders' root: folders with an owner, which are mounted by made_folders' rules only.
AREA = ".muster"


class FolderError(Exception):
    """A folder cannot be mounted."""


def resolve_folder(folders_root: str, folder: str) -> str:
    """Return the folder's real path, or raise FolderError with one line."""
    try:
        root = Path(folders_root).resolve()
        path = (root / folder).resolve()
        is_directory = path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # a name that is too long, or links that lead to each other
        cause = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise FolderError(f"folder {folder} cannot be looked up on this agent: {' '.join(cause.split())}") from error
    if path != root and root not in path.parents:
        raise FolderError(f"folder {folder} leads outside {folders_root}")
    if path == root or (root / AREA) in {path, *path.parents}:
        raise FolderError(f"folder {folder} leads to where folders with an owner are kept on this agent")
    if not is_directory:
        raise FolderError(f"folder {folder} does not exist under {folders_root} on this agent")
    return str(path)


def check_target(target: str, runtime_path: str, libraries: Iterable[str] = ()) -> None:
    """Raise FolderError unless a mount may be put there; `libraries` are places in directories of the image."""
    if not target.startswith("/"):
        raise FolderError(f"mount target {target} is not an absolute path")
    target = _normal(target)
    for reserved in (*RESERVED_TARGETS, runtime_path, *libraries):
        if covers(target, reserved) or (reserved != "/" and covers(reserved, target)):
            raise FolderError(f"mount target {target} is reserved: {reserved} is the kernel's own")


def covers(target: str, path: str) -> bool:
    """Return whether a mount at the target hides what lies at the path."""
    target, path = _normal(target), _normal(path)
    return path == target or path.startswith(target.rstrip("/") + "/")


def _normal(path: str) -> str:
    return "/" + posixpath.normpath(path).lstrip("/")
