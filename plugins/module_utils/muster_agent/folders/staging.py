"""Where the engine finds the folders that a kernel mounts: each bound by itself to a place that only root may enter.

The engine goes to a mount's source by its path, when it starts a container and at every copy out of it. A tenant with
write access to a directory above a folder could put a link in its place meanwhile. So the folder is opened without
following links, and what was opened is bound to a path that no tenant can change.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..engine.mount_check import Identity
from ..host_mounts import make_read_only, remove_mount_points
from ..launch.tmpfs import ensure_own_tmpfs
from ..names import MOUNT_ROOT
from .mounted import FolderError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..names import ClusterPaths

    Bind = Callable[[int, Path], None]

_ROOT_ONLY = 0o700
_OPEN = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


class StagedFolder(NamedTuple):
    path: str
    identity: Identity


def stage(
    directory: Path, folders_root: str, places: dict[str, str], read_only: Collection[str], bind: Bind
) -> dict[str, StagedFolder]:
    """Bind a kernel's folders below its own directory; `places` has the real path of each under the folders' root.

    Those in `read_only` cannot be written to there, with all that is mounted below them. Raises FolderError.
    """
    if not places:
        return {}
    try:
        remove_mount_points(directory)  # of a launch that was given up
        ensure_own_tmpfs(MOUNT_ROOT, _ROOT_ONLY)
        directory.mkdir(mode=_ROOT_ONLY, parents=True)
        staged = {
            folder: _staged(directory / str(number), folders_root, place, folder, bind)
            for number, (folder, place) in enumerate(places.items())
        }
        for folder in read_only:
            make_read_only(Path(staged[folder].path))
    except OSError as error:
        raise FolderError(f"folders cannot be mounted below {MOUNT_ROOT}: {error.strerror or error}") from error
    return staged


def remove(paths: ClusterPaths, session_id: str, kernel_name: str = "") -> None:
    """Remove the mounts of a kernel's folders, or of all kernels of a session. Raises OSError."""
    remove_mount_points(paths.mounts / session_id / kernel_name)


def _staged(target: Path, folders_root: str, place: str, folder: str, bind: Bind) -> StagedFolder:
    descriptor = _opened(folders_root, place, folder)
    try:
        target.mkdir(mode=_ROOT_ONLY)
        bind(descriptor, target)
        state = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return StagedFolder(str(target), Identity(state.st_dev, state.st_ino))


def _opened(folders_root: str, place: str, folder: str) -> int:
    """Return a descriptor of a directory to which every step from the root is a directory, and none a link."""
    root = Path(folders_root).resolve()
    descriptor = os.open(root, _OPEN)
    for name in Path(place).relative_to(root).parts:
        try:
            below = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=descriptor)
        except OSError as error:
            raise FolderError(f"folder {folder} was replaced while it was being mounted: {error.strerror}") from error
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor
