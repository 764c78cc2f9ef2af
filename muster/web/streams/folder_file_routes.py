"""`/api/v1/folders/F/files` and `…/content`: what is in a data folder."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from muster.core.model.projects import DEFAULT_PROJECT
from muster.service.folders.files import FilePlace
from muster.service.folders.views import FilesView
from muster.web.api import models
from muster.web.api.folder_routes import Name, Project
from muster.web.api.requests import note_file, note_owner, reply
from muster.web.caller import Backend
from muster.web.problems import answers
from muster.web.streams.file_content import file_response, take_upload

router = APIRouter(prefix="/folders/{folder}", tags=["folders"])
_TEXT = r"^[^\x00]*$"


def _place(
    request: Request,
    folder: Name,
    *,
    path: Annotated[
        str, Query(description="in the folder, such as results/loss.csv", max_length=4096, pattern=_TEXT)
    ] = "",
    owner: Annotated[
        str | None,
        Query(description="the folder's owner; the caller by default", min_length=1, max_length=255, pattern=_TEXT),
    ] = None,
    agent: Annotated[
        str | None, Query(description="the agent; by default the first that has the path", min_length=1, max_length=255)
    ] = None,
    project: Project = DEFAULT_PROJECT,
) -> FilePlace:
    note_owner(request, owner)
    note_file(request, path)
    return FilePlace(folder, owner, path, agent, project)


Place = Annotated[FilePlace, Depends(_place)]


@router.get("/files", response_model=FilesView, responses=answers(403, 404, 409), summary="List files of a folder")
def list_files(backend: Backend, place: Place) -> Response:
    """Return an entry of a folder, and what is in it if it is a directory. Links are not followed."""
    return reply(backend.folders.look(place))


@router.delete("/files", status_code=204, responses=answers(403, 404, 409))
def remove_file(backend: Backend, place: Place) -> Response:
    """Remove a file, or a directory with all that is in it."""
    backend.folders.remove_file(place)
    return Response(status_code=204)


@router.post("/files/rename", status_code=204, responses=answers(403, 404, 409))
def rename_file(backend: Backend, place: Place, body: models.MoveRequest) -> Response:
    """Rename or move a file or a directory within the folder. Nothing that exists is replaced."""
    backend.folders.rename_file(place, body.to)
    return Response(status_code=204)


@router.post("/directories", status_code=204, responses=answers(403, 404, 409))
def make_directory(backend: Backend, place: Place) -> Response:
    """Make a directory in a folder."""
    backend.folders.make_directory(place)
    return Response(status_code=204)


@router.get(
    "/content",
    responses=answers(403, 404, 409)
    | {200: {"description": "The file", "content": {"application/octet-stream": {}, "application/x-tar": {}}}},
    response_class=Response,
)
async def read_file(request: Request, backend: Backend, place: Place) -> Response:
    """Return a file; a directory as a tar file."""
    return await file_response(request, backend, place, backend.token_is_valid)


@router.put(
    "/content",
    status_code=204,
    responses=answers(403, 404, 409),
    openapi_extra={"requestBody": {"required": True, "content": {"application/octet-stream": {}}}},
)
async def write_file(
    request: Request,
    backend: Backend,
    place: Place,
    *,
    replace: Annotated[bool, Query(description="replace a file of that name")] = False,
) -> Response:
    """Write a file, whole or not at all. The request must have a Content-Length."""
    await take_upload(request, backend, place, backend.token_is_valid, replaces=replace)
    return Response(status_code=204)
