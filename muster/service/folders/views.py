"""Folders with their usage and the sessions that mount them, and as plain data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.core.model.folders import Folder, FolderUser
from muster.core.values.moment import timestamp


@dataclass(frozen=True, slots=True)
class FolderUse:
    """What a folder holds on all agents that answered; None where counting it would have taken too long.

    `unenforced` says by agent id why its quota is not enforced there.
    """

    used_bytes: int | None
    files: int | None
    unenforced: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FolderDetails:
    """A folder, the sessions that mount it, and its usage: None where no agent measured it."""

    folder: Folder
    users: Sequence[FolderUser] = ()
    use: FolderUse | None = None


@dataclass(frozen=True, slots=True)
class FolderListing:
    """Folders, and by agent id why an agent did not measure them."""

    items: Sequence[FolderDetails]
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FolderRemoved:
    """`left` is what is still there: on the agents that it is `left_on`."""

    name: str
    removed_from: Sequence[str] = ()
    left: Folder | None = None
    problems: Mapping[str, str] = field(default_factory=dict)


def folder_json(details: FolderDetails) -> dict[str, Any]:
    folder, use = details.folder, details.use
    return {
        "id": folder.id,
        "name": folder.name,
        "owner": folder.owner,
        "path": folder.path,
        "state": "removing" if folder.removed_at else "ready",
        "left_on": list(folder.left_on),
        "created_at": timestamp(folder.created_at),
        "quota_bytes": folder.quota_bytes,
        "quota_not_enforced": dict(use.unenforced) if use else {},
        "used_bytes": use.used_bytes if use else None,
        "files": use.files if use else None,
        "used_by": [user.session for user in details.users],
        "shared_with": [{"grantee": share.grantee, "read_only": share.read_only} for share in folder.shares],
    }


def removed_json(removed: FolderRemoved) -> dict[str, Any]:
    left_on = list(removed.left.left_on) if removed.left else []
    return {"name": removed.name, "removed": removed.left is None, "left_on": left_on}
