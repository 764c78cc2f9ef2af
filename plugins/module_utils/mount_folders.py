"""A mount's folder on this host: under the folders' root even when every symbolic link is followed."""

from __future__ import annotations

import posixpath
from pathlib import Path

# What a mount must not cover: what makes a kernel a kernel.
RESERVED_TARGETS = ("/", "/dev", "/etc", "/proc", "/run/muster", "/sys")


class FolderError(Exception):
    """A folder cannot be mounted."""


def resolve_folder(folders_root: str, folder: str) -> str:
    """Return the folder's real path, or raise FolderError with one line."""
    root = Path(folders_root).resolve()
    path = (root / folder).resolve()
    if path != root and root not in path.parents:
        raise FolderError(f"folder {folder} leads outside {folders_root}")
    if not path.is_dir():
        raise FolderError(f"folder {folder} does not exist under {folders_root} on this agent")
    return str(path)


def check_target(target: str, runtime_path: str) -> None:
    """Raise FolderError unless a mount may be put there."""
    if not target.startswith("/"):
        raise FolderError(f"mount target {target} is not an absolute path")
    target = "/" + posixpath.normpath(target).lstrip("/")
    for reserved in (*RESERVED_TARGETS, runtime_path):
        covers = reserved == target or reserved.startswith(target.rstrip("/") + "/")
        if covers or (reserved != "/" and target.startswith(reserved + "/")):
            raise FolderError(f"mount target {target} is reserved: {reserved} is the kernel's own")
