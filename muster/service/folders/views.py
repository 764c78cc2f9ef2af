"""Views of folders, with their usage and the sessions that mount them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field

from muster.contract.files import FileKind
from muster.core.model.folders import Folder, FolderMounter
from muster.service.view import Moment, View


@dataclass(frozen=True, slots=True)
class FolderUsage:
    """A folder's usage on all agents that answered; None if counting would have taken too long.

    `unenforced` says by agent id why its quota is not enforced there.
    """

    used_bytes: int | None
    files: int | None
    unenforced: Mapping[str, str]


class FolderShareView(View):
    grantee: str
    read_only: bool


class FolderMounterView(View):
    """A session that mounts a folder."""

    session: str
    owner: str


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
    mounters: list[FolderMounterView] = Field(description="the same sessions with their owners")
    shared_with: list[FolderShareView]

    @classmethod
    def of(cls, folder: Folder, mounters: Sequence[FolderMounter] = (), use: FolderUsage | None = None) -> Self:
        """Return the view; `use` is None where no agent measured the folder."""
        return cls(
            id=folder.id,
            name=folder.name,
            owner=folder.owner,
            path=folder.path,
            state="removing" if folder.removed_at else "ready",
            left_on=list(folder.left_on),
            created_at=folder.created_at,
            quota_bytes=folder.quota_bytes,
            quota_not_enforced=dict(use.unenforced) if use else {},
            used_bytes=use.used_bytes if use else None,
            files=use.files if use else None,
            used_by=[mounter.session for mounter in mounters],
            mounters=[FolderMounterView(session=mounter.session, owner=mounter.owner) for mounter in mounters],
            shared_with=[FolderShareView(grantee=s.grantee, read_only=s.read_only) for s in folder.shares],
        )


class MeasuredFolderView(FolderView):
    """A folder, and the agents that did not measure it."""

    problems: dict[str, str] = Field(default={}, description="by agent, why it did not answer")


class FoldersView(View):
    items: list[FolderView]
    problems: dict[str, str] = Field(description="by agent, why it did not answer")


class FileView(View):
    """An entry of a folder."""

    name: str
    kind: FileKind = Field(description="directory, file, link (which is not followed), or other")
    size_bytes: int
    modified_at: Moment
    reachable: bool = Field(description="false if the name is no UTF-8 text, and so is escaped here")


class FilesView(FileView):
    """An entry of a folder; of a directory with the first of its entries, directories first."""

    path: str = Field(description="in the folder; empty for the folder itself")
    agent: str
    other_agents: list[str] = Field(
        description="agents with a part of their own of this folder, if the request named no agent"
    )
    items: list[FileView]
    left_out: int = Field(description="how many further entries the directory has")
    may_change: bool


class FolderRemovedView(View):
    """The result of `muster folder rm --json`."""

    name: str
    removed: bool
    removed_from: list[str] = Field(description="agents")
    left_on: list[str] = Field(description="agents that still hold the data")
    problems: dict[str, str] = Field(description="by agent, why it did not answer")


class UnsharedView(View):
    name: str
    grantee: str
    still_mounted_by: list[str]
