"""`/api/v1/report` and `/use`: what sessions used over a time, and what they use at this moment."""

import time
from typing import Annotated

from fastapi import APIRouter, Query, Response

from muster.service.usage.reports import Report, point_or_ago, report_json, report_keys
from muster.web.api import models
from muster.web.api.requests import Replying
from muster.web.caller import Asked
from muster.web.problems import answers

router = APIRouter(tags=["use"])
_TEXT = r"^[^\x00]*$"
Point = Annotated[str | None, Query(max_length=64, description="2026-11-01, 2026-11-22T08:00, or 7d: so long ago")]
Text = Annotated[str, Query(max_length=255, pattern=_TEXT)]
Keys = Annotated[list[Text], Query(description="user, project, day, session; user by default")]
Only = Annotated[list[Text], Query(description="only theirs; those of all where none is named")]
Named = Annotated[list[Text], Query(description="all that run, where none is named")]
_INTERVAL_S = 2.0


@router.get("/report", response_model=models.ReportView, responses=answers(422), summary="What was used over a time")
def report(
    asked: Asked,
    reply: Replying,
    *,
    since: Point = None,
    until: Point = None,
    by: Keys = [],  # noqa: B006 - FastAPI copies it
    user: Only = [],  # noqa: B006
    project: Only = [],  # noqa: B006
) -> Response:
    """As `muster report`: the caller's own sessions, an administrator everybody's; of the last 30 days by default."""
    now = time.time()
    begins = None if since is None else point_or_ago(since, now, "since")
    ends = None if until is None else point_or_ago(until, now, "until")
    return reply(Report, asked.report(begins, ends, report_keys(by), user, project), report_json)


@router.get("/use", response_model=models.UsesView, responses=answers(404, 409, 422), summary="What is used now")
def use(
    asked: Asked,
    reply: Replying,
    *,
    session: Named = [],  # noqa: B006
) -> Response:
    """One look as of `muster top`: what each kernel of the caller's running sessions uses at this moment."""
    from muster.service.usage.live import KernelNow, kernel_now_json  # noqa: PLC0415 - the Docker SDK loads slowly

    looked = next(iter(asked.looks(session, _INTERVAL_S, once=True)))
    return reply(list[KernelNow], list(looked), lambda found: {"items": [kernel_now_json(now) for now in found]})
