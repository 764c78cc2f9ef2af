"""The control group around each kernel's container: it outlives the container, and with it what that has used.

The engine removes a container's own group the moment its process ends; a parent of ours keeps the sums.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..mount_table import fields, listing
from ..names import KEY_ROOT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from .api import EngineApi

_MOUNTS = Path("/proc/self/mounts")
_SYSTEMD = "systemd"
_CGROUPFS = "cgroupfs"
_SLICE = "muster.slice"


class Place(NamedTuple):
    """A launch of a kernel on this host."""

    cluster: str
    session_id: str
    generation: str
    kernel_name: str

    @property
    def group(self) -> str:
        return f"muster/{self.cluster}/{self.session_id}/{self.generation}/{self.kernel_name}"

    @property
    def slice(self) -> str:
        """Return systemd's name of the cgroup, in which a dash would mean a slice within another."""
        words = (_flat(self.cluster), _flat(self.session_id), self.generation, _dotted(self.kernel_name))
        return f"muster-{'_'.join(words)}.slice"


class Hierarchies(NamedTuple):
    """The mounts of control groups: those that count memory and CPU time, and all of them."""

    memory: Path | None
    cpu: Path | None
    unified: bool
    every: tuple[Path, ...]


def parent(engine: EngineApi, place: Place) -> str:
    """Return the engine's CgroupParent for a container; empty where the engine makes no control groups."""
    return {_CGROUPFS: f"/{place.group}", _SYSTEMD: place.slice}.get(str(engine.facts().get("CgroupDriver")), "")


@lru_cache
def hierarchies(mounts: Path = _MOUNTS) -> Hierarchies:
    """Return this host's mounts, which stay the same while this process runs."""
    memory = cpu = unified = None
    every: list[Path] = []
    for _, path, kind, options, *_ in fields(listing(mounts)):
        if kind == "cgroup":
            every.append(Path(path))
            names = options.split(",")
            memory = Path(path) if "memory" in names else memory
            cpu = Path(path) if "cpuacct" in names else cpu
        elif kind == "cgroup2":
            every.append(Path(path))
            unified = Path(path)
    if memory is None and cpu is None:
        return Hierarchies(unified, unified, True, tuple(every))
    return Hierarchies(memory, cpu, False, tuple(every))


def group_of(place: Place, mount: Path | None) -> Path | None:
    """Return the group's directory there, or None where there is none."""
    if mount is None:
        return None
    found = (mount / place.group, mount / _SLICE / place.slice)
    return next((path for path in found if path.is_dir()), None)


def remove_groups(cluster: str, session_id: str, kernel_name: str = "") -> None:
    """Remove the groups of a kernel, or of all kernels of a session; what still holds processes stays."""
    tail = f"_{_dotted(kernel_name)}" if kernel_name else ""
    for mount in hierarchies().every:
        session = mount / "muster" / cluster / session_id
        for group in list(session.glob(f"*/{kernel_name}") if kernel_name else [session]):
            _remove_tree(group)
        _stop_slices(_slices(mount, f"muster-{_flat(cluster)}_{_flat(session_id)}_*{tail}.slice"))


def sweep(cluster: str, session_ids: Collection[str]) -> list[str]:
    """Remove the groups of sessions that are not among these, such as a run left that was killed; of none: all.

    Return the names of those that stay, since something is in them.
    """
    kept = {f"muster-{_flat(cluster)}_{_flat(session_id)}" for session_id in session_ids}
    left: set[str] = set()
    for mount in hierarchies().every:
        directory = mount / "muster" / cluster
        sessions = [path for path in directory.iterdir() if path.is_dir()] if directory.is_dir() else []
        strangers = [path for path in sessions if path.name not in session_ids]
        for session in strangers:
            _remove_tree(session)
        if not session_ids:
            _remove_tree(directory)
        slices = () if _has_namesake(cluster) else _slices(mount, f"muster-{_flat(cluster)}_*.slice")
        strange_slices = [path for path in slices if "_".join(path.name.split("_")[:2]) not in kept]
        _stop_slices(strange_slices)
        left |= {path.name for path in (*strangers, *strange_slices) if path.is_dir()}
    return sorted(left)


def _has_namesake(cluster: str) -> bool:
    """Return whether sessions of another cluster run here whose slices begin alike, as those of `a-b` and `ab` do."""
    try:
        others = {path.name for path in KEY_ROOT.iterdir()} - {cluster}
    except FileNotFoundError:
        return False
    return _flat(cluster) in map(_flat, others)


def _flat(word: str) -> str:
    return word.replace("-", "").replace("_", "").replace(".", "")


def _dotted(kernel_name: str) -> str:
    """Return the name with a dot for each dash: it has none itself, so that no two kernels share a slice."""
    return kernel_name.replace("-", ".")


def _remove_tree(directory: Path) -> None:
    """Remove a group and those in it. Each has dozens of files, so that none of them is looked at."""
    try:
        with os.scandir(directory) as entries:
            children = [directory / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return
    for child in children:
        _remove_tree(child)
    with suppress(OSError):  # it is gone, or a process is in it
        directory.rmdir()


def _slices(mount: Path, pattern: str) -> Iterable[Path]:
    """Return systemd's groups of this pattern; on most hosts, one mount of many has any."""
    directory = mount / _SLICE
    return directory.glob(pattern) if directory.is_dir() else ()


def _stop_slices(paths: Iterable[Path]) -> None:
    names = sorted(path.name for path in paths)
    if names:
        subprocess.run(["systemctl", "stop", *names], capture_output=True, check=False)
