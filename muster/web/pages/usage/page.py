"""`/usage`: what was given and what was used of it, by user, project and day; the same as CSV."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from muster.core.values.errors import BadInputError
from muster.service.usage.reports import Report
from muster.web.pages.usage.query import COLUMNS, KEYS, SPANS, UsageQuery, completed, queried, time_of
from muster.web.pages.usage.table import bars_of, csv_of, most_bars, table_of
from muster.web.viewer import Visiting, Visitor

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class _Found:
    query: UsageQuery
    report: Report


@router.get("/usage")
def usage(request: Request, visitor: Visiting) -> Response:
    """What is wrong with the form is said above it, and the form stays as it was filled in."""
    asked = queried(request.query_params.multi_items())
    context: dict[str, Any] = {"keys": KEYS, "spans": SPANS, "columns": COLUMNS}
    try:
        found = _found(visitor, asked)
    except BadInputError as error:
        return visitor.page("usage.html", status=422, query=asked, problem=str(error), found=None, **context)
    query = found.query
    return visitor.page(
        "usage.html",
        query=query,
        problem=None,
        found=found,
        table=table_of(found.report.lines, query),
        bars=bars_of(found.report.lines, query),
        most_bars=most_bars(query),
        **context,
    )


@router.get("/usage.csv")
def usage_csv(request: Request, visitor: Visiting) -> Response:
    found = _found(visitor, queried(request.query_params.multi_items()))
    first, last = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" for at in (found.report.since, found.report.until))
    name = f"muster-usage-{first}-{last}.csv"
    return Response(
        csv_of(found.report.lines, found.query),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _found(visitor: Visitor, asked: UsageQuery) -> _Found:
    """Raises BadInputError."""
    query = completed(asked, is_admin=visitor.is_admin)
    since, until = time_of(query, time.time())
    users = (query.user,) if query.user else ()
    projects = (query.project,) if query.project else ()
    return _Found(query, visitor.backend.report(since, until, query.by, users, projects))
