"""What a manifest says of the folders that a session mounts (docs/agent-contract.md)."""

from collections.abc import Callable
from typing import Any

from muster.core.model.folders import Folder, MountedFolder
from muster.core.model.session import Session


def mounts(session: Session) -> list[dict[str, Any]]:
    """Plain directories as they were named, and folders with an owner by their places."""
    owned = {folder.target for folder in session.folders}
    plain = [{**mount.model_dump(), "owned": False} for mount in session.spec.mounts if mount.target not in owned]
    return [
        *plain,
        *(
            {"folder": folder.path, "target": folder.target, "read_only": folder.read_only, "owned": True}
            for folder in session.folders
        ),
    ]


def folders_to_make(session: Session, uid_of: Callable[[str], int]) -> list[dict[str, Any]]:
    """Those that the session's agents make if they lack them."""
    return [folder_to_make(folder, uid_of(folder.owner)) for folder in session.folders]


def folder_to_make(folder: Folder | MountedFolder, uid: int) -> dict[str, Any]:
    return {"path": folder.path, "uid": uid, "number": folder.number, "quota_bytes": folder.quota_bytes}


def groups(session: Session, uid_of: Callable[[str], int]) -> list[int]:
    """Groups that the kernels need to use folders of owners with other uids than theirs."""
    uid = uid_of(session.owner)
    return sorted({folder.number for folder in session.folders if uid_of(folder.owner) != uid})
