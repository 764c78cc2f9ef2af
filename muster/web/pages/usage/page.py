"""`/usage`: what was allocated and used, by user, project and day; also as CSV."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from muster.core.values.errors import BadInputError
from muster.service.usage.views import ReportView
from muster.web.pages.usage.query import COLUMNS, KEYS, SPANS, UsageQuery, completed, parse_query, time_of
from muster.web.pages.usage.table import bars_of, csv_of, max_bars, table_of
from muster.web.viewer import CurrentViewer, Viewer
from muster.web.words import plain_words

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class _Found:
    query: UsageQuery
    report: ReportView


@router.get("/usage")
def usage(request: Request, viewer: CurrentViewer) -> Response:
    """Show the usage. A problem of the form is shown above it, and the form stays as it was filled in."""
    query = parse_query(request.query_params.multi_items())
    context: dict[str, Any] = {"keys": KEYS, "spans": SPANS, "columns": COLUMNS}
    context["words"] = viewer.backend.lists.recent_words()
    try:
        found = _found(viewer, query)
    except BadInputError as error:
        return viewer.page(
            "usage.html", status=422, query=query, problem=plain_words(str(error)), found=None, **context
        )
    query = found.query
    return viewer.page(
        "usage.html",
        query=query,
        problem=None,
        found=found,
        table=table_of(found.report.lines, query),
        bars=bars_of(found.report.lines, query),
        max_bars=max_bars(query),
        **context,
    )


@router.get("/usage.csv")
def usage_csv(request: Request, viewer: CurrentViewer) -> Response:
    found = _found(viewer, parse_query(request.query_params.multi_items()))
    first, last = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}" for at in (found.report.since, found.report.until))
    name = f"muster-usage-{first}-{last}.csv"
    return Response(
        csv_of(found.report.lines, found.query),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


def _found(viewer: Viewer, query: UsageQuery) -> _Found:
    """Return the usage report of the query. Raises BadInputError."""
    query = completed(query, is_admin=viewer.is_admin)
    since, until = time_of(query, time.time())
    users = (query.user,) if query.user else ()
    projects = (query.project,) if query.project else ()
    return _Found(query, viewer.backend.report(since, until, query.by, users, projects))
