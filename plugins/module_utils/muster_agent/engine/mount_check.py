"""Whether a container has the directories that were looked at, and not what a tenant put in their place meanwhile.

The engine goes to a mount's source by its path when it starts a container. Between the look at a plain directory and
that moment, whoever may write to a directory above it can put a link in its place.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Identity(NamedTuple):
    device: int
    inode: int


def identity_of(place: str) -> Identity | None:
    """Return what is at a path without links, or None where a link or nothing is there by now."""
    try:
        descriptor = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # The kernel's own word for where that is: a link further up would show.
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()) != place:
            return None
        state = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return Identity(state.st_dev, state.st_ino)


def are_mounted(wanted: Iterable[Identity], pid: int) -> bool:
    """Whether a process has a mount of each, as often as it is wanted; true also for a process that has ended."""
    try:
        mounts = Path(f"/proc/{pid}/mountinfo").read_text("utf-8", "surrogateescape")
        found = Counter(_mounted(pid, line.split()[4]) for line in mounts.splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return True
    return all(found[identity] >= times for identity, times in Counter(wanted).items())


def _mounted(pid: int, mount_point: str) -> Identity | None:
    """What is mounted there: a mount's point, in the process's own tree, leads over no link."""
    path = _ESCAPED.sub(lambda code: chr(int(code.group(1), 8)), mount_point)
    try:
        state = Path(f"/proc/{pid}/root{path}").lstat()
    except OSError:
        return None
    return Identity(state.st_dev, state.st_ino)
