"""What a manifest says of the folders that a session mounts (docs/agent-contract.md)."""

from collections.abc import Callable

from muster.contract.manifest import FolderEntry, MountEntry
from muster.core.model.folders import Folder, MountedFolder
from muster.core.model.session import Session


def mounts(session: Session) -> tuple[MountEntry, ...]:
    """Return plain directories as they were named, and folders with an owner by their paths."""
    owned = {folder.target for folder in session.folders}
    plain = [mount for mount in session.spec.mounts if mount.target not in owned]
    return (
        *(MountEntry(folder=m.folder, target=m.target, read_only=m.read_only, owned=False) for m in plain),
        *(MountEntry(folder=f.path, target=f.target, read_only=f.read_only, owned=True) for f in session.folders),
    )


def folders_to_make(session: Session, uid_of: Callable[[str], int]) -> tuple[FolderEntry, ...]:
    """Return the folders that the session's agents make if they lack them."""
    return tuple(folder_to_make(folder, uid_of(folder.owner)) for folder in session.folders)


def folder_to_make(folder: Folder | MountedFolder, uid: int) -> FolderEntry:
    return FolderEntry(path=folder.path, uid=uid, number=folder.number, quota_bytes=folder.quota_bytes)


def groups(session: Session, uid_of: Callable[[str], int]) -> tuple[int, ...]:
    """Return the groups that the kernels need to use folders of owners with other uids than theirs."""
    uid = uid_of(session.owner)
    return tuple(sorted({folder.number for folder in session.folders if uid_of(folder.owner) != uid}))
