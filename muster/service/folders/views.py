"""Folders with their usage and the sessions that mount them, and their views."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import Field

from muster.core.model.folders import Folder, FolderUser
from muster.service.view import Moment, View


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


class FolderShareView(View):
    grantee: str
    read_only: bool


class FolderView(View):
    """A folder, as `muster folder show --json` prints it."""

    id: str
    name: str
    owner: str
    path: str = Field(description="below folders_root on the agents")
    state: str
    left_on: list[str]
    created_at: Moment
    quota_bytes: int | None
    quota_not_enforced: dict[str, str] = Field(description="by agent, the reason")
    used_bytes: int | None = Field(description="null if the agents did not measure it, or took too long")
    files: int | None
    used_by: list[str] = Field(description="sessions; for folders of other users only the caller's own")
    shared_with: list[FolderShareView]

    @classmethod
    def of(cls, details: FolderDetails) -> Self:
        return cls(**_folder_fields(details))


class MeasuredFolderView(FolderView):
    """A folder, and the agents that did not measure it."""

    problems: dict[str, str] = Field(description="by agent, why it did not answer")

    @classmethod
    def of_listing(cls, listing: FolderListing) -> Self:
        """Return the view of a listing's only folder."""
        (details,) = listing.items
        return cls(**_folder_fields(details), problems=dict(listing.problems))


class FoldersView(View):
    items: list[FolderView]
    problems: dict[str, str] = Field(description="by agent, why it did not answer")

    @classmethod
    def of(cls, listing: FolderListing) -> Self:
        return cls(items=[FolderView.of(one) for one in listing.items], problems=dict(listing.problems))


class FolderRemovedView(View):
    """What was removed; `problems` by agent are the API's alone: `muster folder rm` prints them."""

    name: str
    removed: bool
    left_on: list[str]
    problems: dict[str, str] = Field(default={}, description="by agent, why it did not answer")

    @classmethod
    def of(cls, removed: FolderRemoved) -> Self:
        left_on = list(removed.left.left_on) if removed.left else []
        return cls(name=removed.name, removed=removed.left is None, left_on=left_on)

    @classmethod
    def with_problems(cls, removed: FolderRemoved) -> Self:
        return cls.of(removed).model_copy(update={"problems": dict(removed.problems)})


class UnsharedView(View):
    name: str
    grantee: str
    still_mounted_by: list[str]

    @classmethod
    def of(cls, name: str, grantee: str, users: Sequence[FolderUser]) -> Self:
        return cls(name=name, grantee=grantee, still_mounted_by=[user.session for user in users])


def _folder_fields(details: FolderDetails) -> dict[str, Any]:
    folder, use = details.folder, details.use
    return {
        "id": folder.id,
        "name": folder.name,
        "owner": folder.owner,
        "path": folder.path,
        "state": "removing" if folder.removed_at else "ready",
        "left_on": list(folder.left_on),
        "created_at": folder.created_at,
        "quota_bytes": folder.quota_bytes,
        "quota_not_enforced": dict(use.unenforced) if use else {},
        "used_bytes": use.used_bytes if use else None,
        "files": use.files if use else None,
        "used_by": [user.session for user in details.users],
        "shared_with": [FolderShareView(grantee=s.grantee, read_only=s.read_only) for s in folder.shares],
    }
