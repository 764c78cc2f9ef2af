"""Which ids of the host the ids in containers are, under an engine that remaps them (`userns-remap`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

_OPTION = "name=userns"
# The engine keeps what it has of each mapping below its root, in a directory of the host's ids of root.
_ROOT = re.compile(r"/(\d{1,10})\.(\d{1,10})/*$")
_LINE = re.compile(r"([^:\s]+):(\d{1,10}):(\d{1,10})\s*")
_SUBUID, _SUBGID = Path("/etc/subuid"), Path("/etc/subgid")


class UnmappedIdError(Exception):
    """An id is none in the engine's containers."""


class IdRange(NamedTuple):
    """A range of ids: in containers from `inside` on, and on the host from `host` on."""

    inside: int
    host: int
    length: int


class IdMapping(NamedTuple):
    """The ranges of uids and gids, each from 0 on; empty where they cannot be found."""

    uids: tuple[IdRange, ...]
    gids: tuple[IdRange, ...]

    @property
    def uid_count(self) -> int:
        return sum(found.length for found in self.uids)

    @property
    def gid_count(self) -> int:
        return sum(found.length for found in self.gids)

    def host_uid(self, uid: int) -> int:
        """Return the host's uid. Raises UnmappedIdError."""
        return _host_id(self.uids, uid, f"uid {uid}", _SUBUID)

    def host_gid(self, gid: int) -> int:
        """Return the host's gid. Raises UnmappedIdError."""
        return _host_id(self.gids, gid, f"gid {gid}", _SUBGID)


def id_mapping(info: dict[str, Any], subuid: Path = _SUBUID, subgid: Path = _SUBGID) -> IdMapping | None:
    """Return an engine's mapping by what it says of itself and by the files that it read, or None if it remaps none."""
    if _OPTION not in {option for entry in info.get("SecurityOptions") or () for option in entry.split(",")}:
        return None
    root = _ROOT.search(info["DockerRootDir"])
    if root is None:
        return IdMapping((), ())
    return IdMapping(_ranges(subuid, int(root.group(1))), _ranges(subgid, int(root.group(2))))


def _ranges(path: Path, first: int) -> tuple[IdRange, ...]:
    """Return the ranges of the file's user whose lowest is the host's id of root: the engine joins them in order."""
    try:
        lines = path.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return ()
    found: dict[str, list[tuple[int, int]]] = {}
    for line in lines:
        if entry := _LINE.fullmatch(line):
            found.setdefault(entry.group(1), []).append((int(entry.group(2)), int(entry.group(3))))
    for ranges in found.values():
        if min(ranges)[0] == first:
            inside, joined = 0, []
            for host, count in sorted(ranges):
                joined.append(IdRange(inside, host, count))
                inside += count
            return tuple(joined)
    return ()


def _host_id(ranges: tuple[IdRange, ...], number: int, what: str, path: Path) -> int:
    for found in ranges:
        if found.inside <= number < found.inside + found.length:
            return found.host + number - found.inside
    raise UnmappedIdError(f"this agent's engine remaps ids (userns-remap), and {path} has none for {what}")
