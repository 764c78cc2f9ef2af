"""Files put into a container's own layer before its start, as the engine would unpack them there.

For each archive the engine mounts the container, runs a program of its own, and has the disk written: a tenth of a
second. With the storage driver overlay2 a layer is a directory of this host. What lies there before the container's
first start is what it finds.
"""

from __future__ import annotations

import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OVERLAY2 = "overlay2"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder(NamedTuple):
    """What a directory's own entry says."""

    mode: int
    uid: int
    gid: int


_MISSING = Folder(0o755, 0, 0)


def layer_of(container: dict[str, Any]) -> Path | None:
    """Return the directory of a container that has not begun, or None where only the engine can write into it."""
    driver = container.get("GraphDriver") or {}
    upper = (driver.get("Data") or {}).get("UpperDir")
    if driver.get("Name") != _OVERLAY2 or not upper or container["State"]["Status"] != "created":
        return None
    layer = Path(upper)
    return layer if layer.is_dir() else None  # an engine may see other mounts than this host's


def unpack(archive: bytes, layer: Path, folders: Mapping[str, Sequence[int] | None]) -> bool:
    """Unpack a tar of ours; return False, with nothing written, if it needs a directory that is not known.

    `folders` are by path the directories of the image as they are, or None where it has nothing. Those on the way to
    a file are made in the layer like the image's, for there they hide the image's mode and owner.
    """
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as opened:
        entries = [(member, _content(opened, member)) for member in opened]
    known = {*folders, *(f"/{member.name}" for member, _ in entries if member.isdir())}
    for member, _ in entries:
        *parents, name = member.name.split("/")
        if {"", ".", ".."} & {*parents, name} or not all(path in known for path in _paths(parents)):
            return False
    root = os.open(layer, _FOLDER)
    try:
        for member, content in entries:
            _put(root, member, content, folders)
    finally:
        os.close(root)
    return True


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(member) if member.isreg() else None
    return content.read() if content is not None else b""


def _paths(parts: Sequence[str]) -> list[str]:
    return ["/" + "/".join(parts[: number + 1]) for number in range(len(parts))]


def _put(root: int, member: tarfile.TarInfo, content: bytes, folders: Mapping[str, Sequence[int] | None]) -> None:
    *parents, name = member.name.split("/")
    directory = os.dup(root)
    try:
        for part, path in zip(parents, _paths(parents)):
            found = folders.get(path)
            child = _entered(directory, part, Folder(*found) if found else _MISSING)
            os.close(directory)
            directory = child
        if member.isdir():
            child = _entered(directory, name, _MISSING)
            _give(child, member)
            os.close(child)
            return
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)
        if member.issym():
            os.symlink(member.linkname, name, dir_fd=directory)
            os.chown(name, member.uid, member.gid, dir_fd=directory, follow_symlinks=False)
            return
        with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=directory), "wb") as file:
            file.write(content)
            file.flush()
            _give(file.fileno(), member)
    finally:
        os.close(directory)


def _entered(directory: int, name: str, folder: Folder) -> int:
    """Return a directory in another, opened; one that is missing is made."""
    try:
        return os.open(name, _FOLDER, dir_fd=directory)
    except FileNotFoundError:
        os.mkdir(name, 0o700, dir_fd=directory)
    made = os.open(name, _FOLDER, dir_fd=directory)
    os.fchown(made, folder.uid, folder.gid)
    os.fchmod(made, folder.mode)
    return made


def _give(descriptor: int, member: tarfile.TarInfo) -> None:
    os.fchown(descriptor, member.uid, member.gid)
    os.fchmod(descriptor, member.mode)
