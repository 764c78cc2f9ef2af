"""`/api/v1/folders`: data folders of the caller, and those that others share with them."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from muster.core.model.folders import OWNER_PATTERN
from muster.core.model.projects import DEFAULT_PROJECT
from muster.service.folders.owned import FolderQuery
from muster.service.folders.views import (
    FolderRemovedView,
    FoldersView,
    MeasuredFolderView,
    UnsharedView,
)
from muster.web.api import models
from muster.web.api.requests import note_owner, note_quota, reply
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter(prefix="/folders", tags=["folders"])
_TEXT = r"^[^\x00]*$"
Name = Annotated[str, Path(description="a folder's name", max_length=255, pattern=_TEXT)]
Owner = Annotated[
    str | None,
    Query(description="the folder's owner; the caller by default", min_length=1, max_length=255, pattern=_TEXT),
]

NewOwner = Annotated[
    str | None,
    Query(
        description="the folder's owner; the caller by default",
        min_length=1,
        json_schema_extra=models.matches(OWNER_PATTERN),
    ),
]


def _noted_owner(request: Request, owner: Owner = None) -> str | None:
    note_owner(request, owner)
    return owner


Of = Annotated[str | None, Depends(_noted_owner)]
Project = Annotated[str, Query(description="also folders shared with this project", max_length=255, pattern=_TEXT)]


@router.get("", response_model=FoldersView, responses=answers(409), summary="List folders")
def list_folders(
    backend: Backend,
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
    return reply(backend.folders.search(FolderQuery(all_, project, owner, sizes)))


@router.post("", status_code=201, response_model=MeasuredFolderView, responses=answers(409))
def create(request: Request, backend: Backend, body: models.FolderRequest, *, owner: NewOwner = None) -> Response:
    """Create a folder. Agents that do not answer create it when one of their sessions mounts it."""
    note_owner(request, owner)
    return reply(backend.folders.create(body.name, owner, body.quota_bytes), 201)


@router.get("/{folder}", response_model=MeasuredFolderView, responses=answers(404, 409), summary="Show a folder")
def show(
    backend: Backend,
    folder: Name,
    owner: Of,
    *,
    project: Project = DEFAULT_PROJECT,
    sizes: Annotated[bool, Query(description="have agents measure the folder, which takes seconds")] = True,
) -> Response:
    return reply(backend.folders.show(folder, owner, project=project, sizes=sizes))


@router.delete("/{folder}", response_model=FolderRemovedView, responses=answers(404, 409))
def remove(backend: Backend, folder: Name, owner: Of) -> Response:
    """Remove a folder with its data. Data on unreachable agents is kept; repeat the request once they answer."""
    return reply(backend.folders.remove(folder, owner, lambda _agent: None))


@router.post("/{folder}/quota", response_model=MeasuredFolderView, responses=answers(404, 409))
def set_quota(
    request: Request, backend: Backend, folder: Name, body: models.QuotaRequest, *, owner: Owner = None
) -> Response:
    """Set the quota, which is enforced where the agents' file systems support it."""
    note_quota(request, body.quota_bytes)
    return reply(backend.folders.set_quota(folder, owner, body.quota_bytes))


@router.post("/{folder}/share", response_model=MeasuredFolderView, responses=answers(404))
def share(backend: Backend, folder: Name, body: models.ShareRequest, owner: Of) -> Response:
    """Let a user, or all sessions of a project, mount the folder; this replaces an earlier share."""
    return reply(backend.folders.share(folder, owner, body.grantee, read_only=body.read_only))


@router.post("/{folder}/unshare", response_model=UnsharedView, responses=answers(404))
def unshare(backend: Backend, folder: Name, body: models.UnshareRequest, *, owner: Owner = None) -> Response:
    """End a share; sessions that were submitted with it keep it until they end."""
    return reply(backend.folders.unshare(folder, owner, body.grantee))
