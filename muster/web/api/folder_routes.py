"""`/api/v1/folders`: data folders of the caller, and those that others share with him."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from muster.core.model.folders import Folder, FolderUser
from muster.service.folders.owned import DEFAULT_PROJECT, FolderQuery
from muster.service.folders.views import FolderDetails, FolderListing, FolderRemoved, folder_json, removed_json
from muster.web.api import models
from muster.web.api.requests import Replying, note_owner
from muster.web.caller import Asked
from muster.web.problems import answers

router = APIRouter(prefix="/folders", tags=["folders"])
_TEXT = r"^[^\x00]*$"
Name = Annotated[str, Path(description="a folder's name", max_length=255, pattern=_TEXT)]
Owner = Annotated[
    str | None,
    Query(description="whose folder it is; the caller's own by default", min_length=1, max_length=255, pattern=_TEXT),
]


def _noted_owner(request: Request, owner: Owner = None) -> str | None:
    note_owner(request, owner)
    return owner


Of = Annotated[str | None, Depends(_noted_owner)]
Project = Annotated[str, Query(description="also what is shared with this project", max_length=255, pattern=_TEXT)]


@router.get("", response_model=models.FoldersView, responses=answers(422), summary="List folders")
def list_folders(
    asked: Asked,
    reply: Replying,
    *,
    all_: Annotated[bool, Query(alias="all", description="everybody's, for administrators")] = False,
    project: Project = DEFAULT_PROJECT,
    owner: Annotated[
        str | None,
        Query(description="as this user sees it; for administrators", min_length=1, max_length=255, pattern=_TEXT),
    ] = None,
    sizes: Annotated[bool, Query(description="ask the agents what they hold, which takes seconds")] = False,
) -> Response:
    """The caller's own, and those shared with him or with the project."""
    return reply(FolderListing, asked.folders.search(FolderQuery(all_, project, owner, sizes)), _items)


@router.post("", status_code=201, response_model=models.FolderView, responses=answers(409, 422))
def create(asked: Asked, reply: Replying, wanted: models.FolderRequest, owner: Of) -> Response:
    """Make a folder. Agents that do not answer make it when a session of theirs mounts it."""
    return reply(FolderListing, asked.folders.create(wanted.name, owner, wanted.quota_bytes), _one, 201)


@router.get("/{folder}", response_model=models.FolderView, responses=answers(404, 422), summary="Show a folder")
def show(
    asked: Asked,
    reply: Replying,
    folder: Name,
    owner: Of,
    *,
    project: Project = DEFAULT_PROJECT,
    sizes: Annotated[bool, Query(description="ask the agents what it holds, which takes seconds")] = True,
) -> Response:
    return reply(FolderListing, asked.folders.show(folder, owner, project=project, sizes=sizes), _one)


@router.delete("/{folder}", response_model=models.FolderRemovedView, responses=answers(404, 409, 422))
def remove(asked: Asked, reply: Replying, folder: Name, owner: Of) -> Response:
    """Remove a folder and all that is in it. What an agent that does not answer holds stays: ask again then."""
    removed = asked.folders.remove(folder, owner, lambda _agent: None)
    return reply(FolderRemoved, removed, lambda told: {**removed_json(told), "problems": dict(told.problems)})


@router.post("/{folder}/quota", response_model=models.FolderView, responses=answers(404, 422))
def set_quota(
    asked: Asked, reply: Replying, folder: Name, wanted: models.QuotaRequest, *, owner: Owner = None
) -> Response:
    """Change how much it may hold; enforced where agents can."""
    return reply(FolderListing, asked.folders.set_quota(folder, owner, wanted.quota_bytes), _one)


@router.post("/{folder}/share", response_model=models.FolderView, responses=answers(404, 422))
def share(asked: Asked, reply: Replying, folder: Name, wanted: models.ShareRequest, owner: Of) -> Response:
    """Let a user, or all sessions of a project, mount it; whoever has a share already gets this one instead."""
    shared = asked.folders.share(folder, owner, wanted.grantee, read_only=wanted.read_only)
    return reply(Folder, shared, lambda one: {**folder_json(FolderDetails(one)), "problems": {}})


@router.post("/{folder}/unshare", response_model=models.UnsharedView, responses=answers(404, 422))
def unshare(
    asked: Asked, reply: Replying, folder: Name, wanted: models.UnshareRequest, *, owner: Owner = None
) -> Response:
    """Take a share back; sessions that were submitted with it keep it until they end."""
    keep = asked.folders.unshare(folder, owner, wanted.grantee)
    told = {"name": folder, "grantee": wanted.grantee}
    return reply(list[FolderUser], keep, lambda users: {**told, "still_mounted_by": [user.session for user in users]})


def _items(told: FolderListing) -> dict[str, object]:
    return {"items": [folder_json(one) for one in told.items], "problems": dict(told.problems)}


def _one(told: FolderListing) -> dict[str, object]:
    (one,) = told.items
    return {**folder_json(one), "problems": dict(told.problems)}
