"""`/api/v1/report` and `/use`: the usage of sessions over a time, and at this moment."""

import time
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import Field

from muster.core.usage.report import KEYS
from muster.service.usage.reports import point_or_ago, report_keys
from muster.service.usage.views import CurrentUsagesView, ReportView
from muster.web.api.requests import reply
from muster.web.caller import Backend
from muster.web.problems import answers

router = APIRouter(tags=["use"])
_TEXT = r"^[^\x00]*$"
Point = Annotated[str | None, Query(max_length=64, description="2026-11-01, 2026-11-22T08:00, or 7d (ago)")]
Text = Annotated[str, Query(max_length=255, pattern=_TEXT)]
_KEY = f" *({'|'.join(KEYS)}) *"
Key = Annotated[str, Field(max_length=255, json_schema_extra={"pattern": f"^{_KEY}(,{_KEY})*$"})]
Keys = Annotated[list[Key], Query(description="user, project, day, session; user by default")]
Only = Annotated[list[Text], Query(description="only these; all if none is named")]
Named = Annotated[list[Text], Query(description="all running sessions if none is named")]
_INTERVAL_S = 2.0


@router.get("/report", response_model=ReportView, responses=answers(), summary="Show usage over a time")
def report(
    backend: Backend,
    *,
    since: Point = None,
    until: Point = None,
    by: Keys = [],  # noqa: B006 - FastAPI copies it
    user: Only = [],  # noqa: B006
    project: Only = [],  # noqa: B006
) -> Response:
    """Return the usage report of the caller's sessions, or of all for administrators; by default of 30 days."""
    now = time.time()
    begins = None if since is None else point_or_ago(since, now, "since")
    ends = None if until is None else point_or_ago(until, now, "until")
    return reply(backend.report(begins, ends, report_keys(by), user, project))


@router.get("/use", response_model=CurrentUsagesView, responses=answers(404, 409), summary="Show current usage")
def use(
    backend: Backend,
    *,
    session: Named = [],  # noqa: B006
) -> Response:
    """Return the current usage of each kernel of the caller's running sessions, as `muster top` shows it."""
    return reply(next(iter(backend.usage_samples(session, _INTERVAL_S, once=True))))
