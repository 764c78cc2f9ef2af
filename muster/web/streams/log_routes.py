"""What kernels write, as a stream that ends when its reader goes."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from muster.service.reach.logs import LogRequest
from muster.web.api.session_routes import Reference
from muster.web.caller import Asked
from muster.web.problems import answers
from muster.web.streams.log_stream import log_answer

router = APIRouter(prefix="/sessions", tags=["sessions"])
Kernel = Annotated[str, Path(max_length=64, description="such as main1; a dash for the main kernel")]


@router.get(
    "/{session}/kernels/{kernel}/log",
    responses=answers(404, 409, 422) | {200: {"description": "Its log", "content": {"text/plain": {}}}},
    response_class=Response,
)
async def log(
    request: Request,
    asked: Asked,
    session: Reference,
    kernel: Kernel,
    *,
    follow: Annotated[bool, Query(description="go on until the kernel ends")] = False,
    tail: Annotated[int | None, Query(ge=0, le=1_000_000, description="only that many of the last lines")] = None,
    timestamps: Annotated[bool, Query(description="before each line, when it was written")] = False,
    app: Annotated[str | None, Query(max_length=64, description="what this app has written instead")] = None,
) -> Response:
    """What a kernel has written: while it runs as it comes, afterwards what was kept."""
    wanted = LogRequest(follow=follow, tail=tail, timestamps=timestamps, app=app)
    return await log_answer(request, asked, session, None if kernel == "-" else kernel, wanted, asked.token_is_valid)
