"""`/api/v1/sessions/S/commit` and `/commits`: images of running kernels, and their progress."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from muster.service.images.views import CommitView
from muster.web.api import models
from muster.web.api.requests import note_sessions, reply
from muster.web.api.session_routes import Reference
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter(tags=["images"])


@router.post(
    "/sessions/{session}/commit",
    status_code=202,
    response_model=CommitView,
    responses=answers(404, 409),
    summary="Commit a running kernel to an image",
)
def commit(request: Request, backend: Backend, session: Reference, body: models.CommitRequest) -> Response:
    """Begin a commit. `/commits/NAME:TAG` has its progress, and the reason if it fails."""
    found = backend.find(session)
    note_sessions(request, [found])
    begun = backend.images.begin_commit(found.id, body.kernel, body.name, message=body.message, public=body.public)
    return reply(begun, 202)


@router.get("/commits/{image:path}", response_model=CommitView, responses=answers(404))
def commit_state(
    backend: Backend,
    image: Annotated[str, Path(description="NAME:TAG", max_length=400, pattern=r"^[^\x00]*$")],
) -> Response:
    """Show the build state of an image of the caller, until the image is removed; a failed build for some time."""
    return reply(backend.images.commit_state(image))
