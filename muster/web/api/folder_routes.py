"""`/api/v1/folders`: data folders of the caller, and those that others share with them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from muster.core.model.folders import Folder, FolderUser
from muster.service.folders.owned import DEFAULT_PROJECT, FolderQuery
from muster.service.folders.views import (
    FolderDetails,
    FolderListing,
    FolderRemoved,
    FolderRemovedView,
    FoldersView,
    MeasuredFolderView,
    UnsharedView,
)
from muster.web.api import models
from muster.web.api.requests import Replying, note_owner
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter(prefix="/folders", tags=["folders"])
_TEXT = r"^[^\x00]*$"
Name = Annotated[str, Path(description="a folder's name", max_length=255, pattern=_TEXT)]
Owner = Annotated[
    str | None,
    Query(description="the folder's owner; the caller by default", min_length=1, max_length=255, pattern=_TEXT),
]


def _noted_owner(request: Request, owner: Owner = None) -> str | None:
    note_owner(request, owner)
    return owner


Of = Annotated[str | None, Depends(_noted_owner)]
Project = Annotated[str, Query(description="also folders shared with this project", max_length=255, pattern=_TEXT)]


@router.get("", response_model=FoldersView, responses=answers(422), summary="List folders")
def list_folders(
    backend: Backend,
    reply: Replying,
    *,
    all_: Annotated[bool, Query(alias="all", description="folders of all users; for administrators")] = False,
    project: Project = DEFAULT_PROJECT,
    owner: Annotated[
        str | None,
        Query(description="as this user sees them; for administrators", min_length=1, max_length=255, pattern=_TEXT),
    ] = None,
    sizes: Annotated[bool, Query(description="have agents measure the folders, which takes seconds")] = False,
) -> Response:
    """List the caller's folders, and those shared with them or with the project."""
    return reply(FolderListing, backend.folders.search(FolderQuery(all_, project, owner, sizes)), FoldersView.of)


@router.post("", status_code=201, response_model=MeasuredFolderView, responses=answers(409, 422))
def create(backend: Backend, reply: Replying, body: models.FolderRequest, owner: Of) -> Response:
    """Create a folder. Agents that do not answer create it when one of their sessions mounts it."""
    return reply(
        FolderListing, backend.folders.create(body.name, owner, body.quota_bytes), MeasuredFolderView.of_listing, 201
    )


@router.get("/{folder}", response_model=MeasuredFolderView, responses=answers(404, 422), summary="Show a folder")
def show(
    backend: Backend,
    reply: Replying,
    folder: Name,
    owner: Of,
    *,
    project: Project = DEFAULT_PROJECT,
    sizes: Annotated[bool, Query(description="have agents measure the folder, which takes seconds")] = True,
) -> Response:
    return reply(
        FolderListing, backend.folders.show(folder, owner, project=project, sizes=sizes), MeasuredFolderView.of_listing
    )


@router.delete("/{folder}", response_model=FolderRemovedView, responses=answers(404, 409, 422))
def remove(backend: Backend, reply: Replying, folder: Name, owner: Of) -> Response:
    """Remove a folder with its data. Data on unreachable agents is kept; repeat the request once they answer."""
    removed = backend.folders.remove(folder, owner, lambda _agent: None)
    return reply(FolderRemoved, removed, FolderRemovedView.with_problems)


@router.post("/{folder}/quota", response_model=MeasuredFolderView, responses=answers(404, 422))
def set_quota(
    backend: Backend, reply: Replying, folder: Name, body: models.QuotaRequest, *, owner: Owner = None
) -> Response:
    """Set the quota, which is enforced where the agents' file systems support it."""
    return reply(
        FolderListing, backend.folders.set_quota(folder, owner, body.quota_bytes), MeasuredFolderView.of_listing
    )


@router.post("/{folder}/share", response_model=MeasuredFolderView, responses=answers(404, 422))
def share(backend: Backend, reply: Replying, folder: Name, body: models.ShareRequest, owner: Of) -> Response:
    """Let a user, or all sessions of a project, mount the folder; this replaces an earlier share."""
    shared = backend.folders.share(folder, owner, body.grantee, read_only=body.read_only)
    return reply(Folder, shared, lambda one: MeasuredFolderView.of_listing(FolderListing([FolderDetails(one)])))


@router.post("/{folder}/unshare", response_model=UnsharedView, responses=answers(404, 422))
def unshare(
    backend: Backend, reply: Replying, folder: Name, body: models.UnshareRequest, *, owner: Owner = None
) -> Response:
    """End a share; sessions that were submitted with it keep it until they end."""
    mounters = backend.folders.unshare(folder, owner, body.grantee)
    return reply(list[FolderUser], mounters, lambda users: UnsharedView.of(folder, body.grantee, users))
