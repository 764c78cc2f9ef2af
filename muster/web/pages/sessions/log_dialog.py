"""A kernel's log: what stands in the dialog, its text as it comes, and the whole as a file."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response

from muster.core.model.apps import apps_of
from muster.core.model.session import FINAL, SessionState, kernel_named
from muster.core.values.errors import MusterError
from muster.service.reach.logs import LogRequest
from muster.web.problems import problem
from muster.web.streams.log_stream import log_answer
from muster.web.viewer import Visiting, Visitor

router = APIRouter(prefix="/sessions/{session}/kernels/{kernel}", include_in_schema=False)
Kernel = Annotated[str, Path(max_length=64)]
MAX_LINES = 20_000
_TAILS = (100, 1000, 10_000, MAX_LINES)


@router.get("/log-dialog")
def log_dialog(visitor: Visiting, session: str, kernel: Kernel) -> Response:
    found = visitor.backend.find(session)
    apps = apps_of(found.spec) if found.state is SessionState.RUNNING else ()
    return visitor.page(
        "log_dialog.html",
        session=found,
        kernel=kernel_named(found, kernel),
        apps=[app for app in apps if app.command is not None],
        tails=_TAILS,
        max_lines=MAX_LINES,
        goes_on=found.state not in FINAL,
    )


@router.get("/log")
async def log(
    request: Request,
    visitor: Visiting,
    session: str,
    kernel: Kernel,
    *,
    follow: bool = False,
    tail: Annotated[int | None, Query(ge=0, le=1_000_000)] = None,
    timestamps: bool = False,
    app: Annotated[str | None, Query(max_length=64)] = None,
    download: bool = False,
) -> Response:
    """For the dialog's script an error is a line of text; a download's is a page."""
    if download:
        wanted = LogRequest(timestamps=timestamps, app=app)
        name = await run_in_threadpool(_file_name, visitor, session, kernel, app)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return await log_answer(request, visitor.backend, session, kernel, wanted, visitor.is_signed_in, headers)
    wanted = LogRequest(follow=follow, tail=tail, timestamps=timestamps, app=app)
    try:
        return await log_answer(request, visitor.backend, session, kernel, wanted, visitor.is_signed_in)
    except MusterError as error:
        told = problem(error)
        return PlainTextResponse(told.detail, told.status)


def _file_name(visitor: Visitor, session: str, kernel: str, app: str | None) -> str:
    """Of what it was found by, so that it holds nothing but what names may hold. Raises NotFoundError."""
    found = visitor.backend.find(session)
    known = {one.name for one in apps_of(found.spec)}
    part = app if app in known else kernel_named(found, kernel).name
    return f"{found.name}-{part}.log"
