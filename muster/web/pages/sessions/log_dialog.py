"""A kernel's log: the dialog, the text as it is written, and the download."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response

from muster.core.model.session import FINAL, SessionState
from muster.core.values.errors import MusterError
from muster.service.reach.logs import LogRequest
from muster.web.problems import problem
from muster.web.streams.log_stream import log_response
from muster.web.viewer import CurrentViewer, Viewer

router = APIRouter(prefix="/sessions/{session}/kernels/{kernel}", include_in_schema=False)
Kernel = Annotated[str, Path(max_length=64)]
MAX_LINES = 20_000
_TAILS = (100, 1000, 10_000, MAX_LINES)


@router.get("/log-dialog")
def log_dialog(viewer: CurrentViewer, session: str, kernel: Kernel) -> Response:
    chosen = viewer.backend.reach.kernel(session, kernel)
    state = chosen.session.state
    return viewer.page(
        "log_dialog.html",
        session=chosen.session,
        kernel=chosen.kernel,
        apps=chosen.logged_apps if state is SessionState.RUNNING else (),
        tails=_TAILS,
        max_lines=MAX_LINES,
        may_grow=state not in FINAL,
    )


@router.get("/log")
async def log(
    request: Request,
    viewer: CurrentViewer,
    session: str,
    kernel: Kernel,
    *,
    follow: bool = False,
    tail: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    timestamps: bool = False,
    app: Annotated[str | None, Query(max_length=64)] = None,
    download: bool = False,
) -> Response:
    """Return the log. An error is a line of text for the dialog's script, and a page for a download."""
    if download:
        log_request = LogRequest(timestamps=timestamps, app=app)
        name = await run_in_threadpool(_file_name, viewer, session, kernel, app)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return await log_response(request, viewer.backend, session, kernel, log_request, viewer.is_signed_in, headers)
    log_request = LogRequest(follow=follow, tail=tail, timestamps=timestamps, app=app)
    try:
        return await log_response(request, viewer.backend, session, kernel, log_request, viewer.is_signed_in)
    except MusterError as error:
        refusal = problem(error)
        return PlainTextResponse(refusal.detail, refusal.status)


def _file_name(viewer: Viewer, session: str, kernel: str, app: str | None) -> str:
    """Return the download's name, made of names that were found, not of the request's text. Raises NotFoundError."""
    chosen = viewer.backend.reach.kernel(session, kernel)
    part = app if app in chosen.logged_apps else chosen.kernel.name
    return f"{chosen.session.name}-{part}.log"
