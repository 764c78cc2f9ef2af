"""`/api/v1/sessions/S/kernels/K/log`: the logs of kernels."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from muster.service.reach.logs import LogRequest
from muster.web.api.session_routes import Reference
from muster.web.caller import Backend
from muster.web.problems import answers
from muster.web.streams.log_stream import log_response

router = APIRouter(prefix="/sessions", tags=["sessions"])
Kernel = Annotated[str, Path(max_length=64, description="such as main1; a dash for the main kernel")]


@router.get(
    "/{session}/kernels/{kernel}/log",
    responses=answers(404, 409) | {200: {"description": "Its log", "content": {"text/plain": {}}}},
    response_class=Response,
)
async def log(
    request: Request,
    backend: Backend,
    session: Reference,
    kernel: Kernel,
    *,
    follow: Annotated[bool, Query(description="go on until the kernel ends")] = False,
    tail: Annotated[int | None, Query(ge=0, le=1_000_000, description="only that many lines of the end")] = None,
    timestamps: Annotated[bool, Query(description="the time of each line before it")] = False,
    app: Annotated[str | None, Query(max_length=64, description="the log of this app instead")] = None,
) -> Response:
    """Return the log of a kernel: while it runs as it is written, afterwards as it was kept."""
    log_request = LogRequest(follow=follow, tail=tail, timestamps=timestamps, app=app)
    return await log_response(
        request, backend, session, None if kernel == "-" else kernel, log_request, backend.token_is_valid
    )
