"""`/api/v1/sessions/S/commit`: images of running kernels, and how far they have come."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from muster.service.images.commits_under_way import CommitState
from muster.service.images.known import committed_json
from muster.web.api import models
from muster.web.api.requests import Replying, note_sessions
from muster.web.api.session_routes import Reference
from muster.web.caller import Asked
from muster.web.problems import answers

router = APIRouter(tags=["images"])


@router.post(
    "/sessions/{session}/commit",
    status_code=202,
    response_model=models.CommitView,
    responses=answers(404, 409, 422),
    summary="Make an image of a running kernel",
)
def commit(
    request: Request, asked: Asked, reply: Replying, session: Reference, wanted: models.CommitRequest
) -> Response:
    """Begins it, and answers at once: `/commits/NAME:TAG` tells how far it has come, and why where it failed."""
    found = asked.find(session)
    note_sessions(request, [found])
    begun = asked.begin_commit(found.id, wanted.kernel, wanted.name, message=wanted.message, public=wanted.public)
    return reply(CommitState, begun, _commit_json, 202)


@router.get("/commits/{image:path}", response_model=models.CommitView, responses=answers(404, 422))
def commit_state(
    asked: Asked,
    reply: Replying,
    image: Annotated[str, Path(description="NAME:TAG", max_length=400, pattern=r"^[^\x00]*$")],
) -> Response:
    """An image that the caller makes or has made, until it is removed; one that failed for as long as it is known."""
    return reply(CommitState, asked.commit_state(image), _commit_json)


def _commit_json(told: CommitState) -> dict[str, Any]:
    return {
        "reference": told.reference,
        "state": told.state,
        "done_bytes": told.done_bytes,
        "total_bytes": told.total_bytes,
        "problem": told.problem,
        "image": committed_json(told.image) if told.image else None,
    }
