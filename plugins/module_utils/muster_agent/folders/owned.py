"""Folders with an owner on this host: made, looked at, removed.

What leads to them belongs to root and is opened without following links, so that no tenant can put something else in
their place.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import quota
from .mounted import AREA, FolderError

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = re.compile(
    re.escape(AREA) + r"/folders/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,63}/\.?[A-Za-z0-9][A-Za-z0-9_.-]{0,61}-[0-9a-f]{8}"
)
_TRASH = f"{AREA}/trash"
_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PARENT_MODE = 0o711
_TRIES = 5
_NEW_MODE = 0o700
# New files in the folder belong to its group, so that users of its shares can use them.
_FOLDER_MODE = 0o2770
_DEFAULT_ACL = "system.posix_acl_default"


class Entry(NamedTuple):
    """A folder as the control node describes it; `number` is that of its group and of its project quota."""

    path: str
    uid: int
    number: int
    quota_bytes: int | None


def parse_entry(entry: dict[str, Any]) -> Entry:
    """Return the folder. Raises KeyError, TypeError or ValueError if the value is none."""
    if not PATH.fullmatch(entry["path"]):
        raise ValueError(f"{entry['path']!r} is not the path of a folder with an owner")
    quota_bytes = entry["quota_bytes"]
    return Entry(
        entry["path"], int(entry["uid"]), int(entry["number"]), None if quota_bytes is None else int(quota_bytes)
    )


def place(folders_root: str, path: str) -> str:
    """Return the path of a folder with an owner on this host, whether or not it exists."""
    if not PATH.fullmatch(path):
        raise FolderError(f"{path} is not the path of a folder with an owner")
    return str(Path(folders_root).resolve() / path)


def make(folders_root: str, entry: Entry, *, sets_quota: bool = False) -> bool:
    """Make a folder that is not there, and mend its owner and mode; return whether it was not there.

    Its quota is set before it is its owner's, or with `sets_quota` in any case. Raises FolderError.
    """
    parent, _, name = entry.path.rpartition("/")
    try:
        with _opened(folders_root, parent, makes=True) as above:
            is_new = _make_directory(name, _NEW_MODE, above)
            folder = os.open(name, _OPEN_DIRECTORY, dir_fd=above)
            try:
                if sets_quota or _is_unfinished(folder):
                    quota.limit(folder, entry.number, entry.quota_bytes)
                _own(folder, entry)
            finally:
                os.close(folder)
    except OSError as error:
        raise FolderError(f"folder {entry.path} cannot be made under {folders_root}: {_cause(error)}") from error
    return is_new


def exists(folders_root: str, path: str) -> bool:
    """Return whether the folder is there. Raises FolderError if something else is in its place."""
    parent, _, name = path.rpartition("/")
    try:
        with _opened(folders_root, parent) as above:
            os.close(os.open(name, _OPEN_DIRECTORY, dir_fd=above))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FolderError(f"folder {path} cannot be opened under {folders_root}: {_cause(error)}") from error
    return True


def differences(folders_root: str, entry: Entry) -> dict[str, tuple[str, str]]:
    """Return what `make` would change of a folder, quota included: how it is and how it shall be, in words.

    Raises FolderError.
    """
    try:
        with opened(folders_root, entry.path) as folder:
            state = os.fstat(folder)
            limit = quota.limited_to(folder, entry.number)
    except FileNotFoundError:
        return {"state": ("absent", "present")}
    except OSError as error:
        raise FolderError(f"folder {entry.path} cannot be read: {_cause(error)}") from error
    pairs = {
        "uid": (str(state.st_uid), str(entry.uid)),
        "gid": (str(state.st_gid), str(entry.number)),
        "mode": (f"{state.st_mode & 0o7777:04o}", f"{_FOLDER_MODE:04o}"),
        # Where the file system cannot count, nothing is set.
        "quota": (limit or "", quota.in_words(entry.quota_bytes) if limit else ""),
    }
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def remains(folders_root: str, path: str) -> bool:
    """Return whether `remove` would find anything: the folder, or what a killed run left of it in the trash."""
    return exists(folders_root, path) or (Path(folders_root).resolve() / _TRASH / path.rpartition("/")[2]).is_dir()


def remove(folders_root: str, path: str) -> bool:
    """Remove a folder with all that is in it; return whether there was anything. Raises FolderError.

    It goes to the trash under its name first, so that nothing half-removed can be mounted; a run that was killed is
    gone on with by the next.
    """
    parent, _, name = path.rpartition("/")
    trash = Path(folders_root).resolve() / _TRASH / name
    try:
        with _opened(folders_root, parent) as above, _opened(folders_root, _TRASH, makes=True) as into:
            was_there = _moved(name, above, into)
    except FileNotFoundError:
        was_there = False
    except OSError as error:
        raise FolderError(f"folder {path} cannot be removed from {folders_root}: {_cause(error)}") from error
    if not trash.is_dir():
        return was_there
    # Not by shutil, whose recursion a tenant's deep directories would exhaust.
    # Again, since other agents of a shared file system remove the same at this moment.
    for _ in range(_TRIES):
        done = subprocess.run(["rm", "-rf", "--", str(trash)], capture_output=True, text=True, check=False)
        if not trash.exists():
            return True
    raise FolderError(f"folder {path} cannot be removed whole: {' '.join(done.stderr.split())[:300]}")


@contextmanager
def opened(folders_root: str, path: str) -> Iterator[int]:
    """Yield a descriptor of the folder. Raises FileNotFoundError where it is not there, OSError, FolderError."""
    parent, _, name = path.rpartition("/")
    with _opened(folders_root, parent) as above:
        folder = os.open(name, _OPEN_DIRECTORY, dir_fd=above)
        try:
            yield folder
        finally:
            os.close(folder)


@contextmanager
def _opened(folders_root: str, path: str, *, makes: bool = False) -> Iterator[int]:
    """Yield a descriptor of a directory that only root can change, as all directories above it below the root."""
    descriptor = _open_root(folders_root)
    try:
        for name in path.split("/"):
            if makes and _make_directory(name, _PARENT_MODE, descriptor):
                os.chmod(name, _PARENT_MODE, dir_fd=descriptor, follow_symlinks=True)
            below = os.open(name, _OPEN_DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
            state = os.fstat(descriptor)
            if state.st_uid != os.geteuid() or state.st_mode & 0o022:
                raise FolderError(f"{name} in {path} under {folders_root} is not root's alone on this agent")
        yield descriptor
    finally:
        os.close(descriptor)


def _open_root(folders_root: str) -> int:
    try:
        return os.open(folders_root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FolderError(f"{folders_root} is no directory on this agent (roles/folders makes it)") from error


def _make_directory(name: str, mode: int, above: int) -> bool:
    try:
        os.mkdir(name, mode, dir_fd=above)
    except FileExistsError:
        return False
    return True


def _moved(name: str, above: int, into: int) -> bool:
    try:
        os.rename(name, name, src_dir_fd=above, dst_dir_fd=into)
    except FileNotFoundError:
        return False
    return True


def _is_unfinished(folder: int) -> bool:
    """Return whether the directory is as it was made: a run that was cut short may have set no quota."""
    state = os.fstat(folder)
    return (state.st_uid, state.st_mode & 0o7777) == (os.geteuid(), _NEW_MODE)


def _own(folder: int, entry: Entry) -> None:
    """Give the directory its owner. A killed run may have left one without, so this is done each time."""
    state = os.fstat(folder)
    if (state.st_uid, state.st_gid) != (entry.uid, entry.number):
        os.fchown(folder, entry.uid, entry.number)
    if state.st_mode & 0o7777 != _FOLDER_MODE:
        os.fchmod(folder, _FOLDER_MODE)
    try:
        os.setxattr(folder, _DEFAULT_ACL, _acl())
    except OSError as error:
        # Without them, the umask of a file's maker decides what users of the folder's shares may do with the file.
        if error.errno not in {errno.EOPNOTSUPP, errno.EPERM, errno.EINVAL}:
            raise


def _acl() -> bytes:
    """Return an ACL (version 2; tag, permissions and id of each entry): owner and group may do all, others nothing."""
    nobody = 0xFFFFFFFF
    entries = ((0x01, 7, nobody), (0x04, 7, nobody), (0x20, 0, nobody))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def _cause(error: OSError) -> str:
    if error.errno in {errno.ELOOP, errno.ENOTDIR}:
        return "something that is no directory is in its place"
    return error.strerror or str(error)
