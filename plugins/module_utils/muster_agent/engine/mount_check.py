"""Whether a container has the directories that were opened for it.

An engine in a mount namespace of its own may not see what was mounted on the host: it would bind the empty directory
beneath.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..mount_table import listing, mounts

if TYPE_CHECKING:
    from collections.abc import Iterable


class Identity(NamedTuple):
    device: int
    inode: int


def are_mounted(desired: Iterable[Identity], pid: int) -> bool:
    """Return whether a process has a mount of each, as often as it is named; also True if the process has ended."""
    try:
        points = [mount.point for mount in mounts(listing(Path(f"/proc/{pid}/mountinfo")))]
    except (FileNotFoundError, ProcessLookupError):
        return True
    found = Counter(_mounted(pid, point) for point in points)
    return all(found[identity] >= times for identity, times in Counter(desired).items())


def _mounted(pid: int, mount_point: str) -> Identity | None:
    """Return what is mounted there: a mount point, seen from the process's own tree, contains no link."""
    try:
        state = Path(f"/proc/{pid}/root{mount_point}").lstat()
    except OSError:
        return None
    return Identity(state.st_dev, state.st_ino)
