"""Select the paths of a container's own layer that go into an image: without Muster's own and without secrets."""

import posixpath
from collections.abc import Collection, Iterable
from dataclasses import dataclass

_WHITEOUT = ".wh."
_OURS = (
    # The paths of keys, secrets and sockets, and of programs from the host.
    *("/run/muster", "/run/fgpu", "/opt/muster"),
    # What each launch writes anew for its own user.
    *("/etc/passwd", "/etc/group", "/etc/ssh/ssh_config", "/etc/profile.d/muster.sh"),
    # What the engine writes for one container.
    *(
        "/sbin/docker-init",
        "/usr/sbin/docker-init",
        "/.dockerenv",
        "/etc/hostname",
        "/etc/hosts",
        "/etc/resolv.conf",
        "/etc/mtab",
        "/dev",
        "/proc",
        "/sys",
    ),
)
_LINKS_INTO = "/run/muster"


@dataclass(frozen=True, slots=True)
class Entry:
    """A member of a layer's archive, by its name there. `target` is where a link leads, symbolic or hard."""

    name: str
    is_directory: bool = False
    target: str = ""
    is_symlink: bool = False

    @property
    def path(self) -> str:
        return _absolute(self.name)

    @property
    def changes(self) -> str:
        """Return the path that the entry changes: of a whiteout, the path that was removed."""
        directory, name = posixpath.split(self.path)
        return posixpath.join(directory, name.removeprefix(_WHITEOUT)) if name.startswith(_WHITEOUT) else self.path


def kept(entries: Iterable[Entry], mount_targets: Collection[str], key_directories: Collection[str]) -> set[str]:
    """Return the names of the members that belong in an image.

    These are left out: all at or below a mount's target, the user's keys, and Muster's own files. Links to any of these
    are left out too, and directories that changed only because of them.
    """
    entries = list(entries)
    roots = {_absolute(path) for path in (*_OURS, *mount_targets, *key_directories)}
    left_out = {entry.name for entry in entries if _is_below(entry.changes, roots) or _leads_into(entry, roots)}
    ours = set[str]()
    for entry in entries:
        if entry.name in left_out:
            ours.update(_parents(entry.changes))
    theirs = set[str]()
    for entry in entries:
        if entry.name not in left_out and not (entry.is_directory and entry.path in ours):
            theirs.update((entry.path, *_parents(entry.path)))
    return {
        entry.name
        for entry in entries
        if entry.name not in left_out and not (entry.path in ours and entry.path not in theirs)
    }


def _leads_into(entry: Entry, roots: Collection[str]) -> bool:
    if not entry.target:
        return False
    if not entry.is_symlink:
        return _is_below(_absolute(entry.target), roots)
    return _is_below(posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.target)), {_LINKS_INTO})


def _is_below(path: str, roots: Collection[str]) -> bool:
    return path in roots or any(parent in roots for parent in _parents(path))


def _parents(path: str) -> list[str]:
    """Return all parent directories but the root."""
    parents = []
    while (path := posixpath.dirname(path)) != "/":
        parents.append(path)
    return parents


def _absolute(name: str) -> str:
    return posixpath.normpath("/" + name.lstrip("/"))
