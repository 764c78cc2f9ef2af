"""`/queue`: when waiting sessions start and why not yet; hold, release and cancel several at once."""

import re
import time
from collections.abc import Mapping
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Form, Query, Request, Response

from muster.core.values.errors import BadInputError
from muster.core.values.units import format_minute
from muster.service.local_backend import LocalBackend
from muster.service.questions.queue_pages import QueuePage
from muster.service.sessions.views import SessionView
from muster.web.api.requests import note_sessions
from muster.web.pages.queue_rows import groups_of
from muster.web.viewer import CurrentViewer

router = APIRouter(include_in_schema=False)
Selected = Annotated[list[str], Query(max_length=10_000)]
FIRST_ROWS, PAGE_ROWS = 25, 50
_ROW = re.compile(r"row:([^:]+):(\d{1,6}):([0-9a-f]+)")
_DONE = {"hold": "held", "release": "released", "cancel": "cancelled"}


@router.get("/queue")
def queue(
    viewer: CurrentViewer,
    *,
    group: Annotated[str | None, Query(max_length=255)] = None,
    within: Annotated[str | None, Query(max_length=255)] = None,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
    selected: Selected = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """Show the first rows of each group, or one group page by page; `within` a row, its sessions one by one.

    The live part sends the selected sessions, so that they stay selected.
    """
    chosen = {"group": group, "within": within}
    base = f"/queue?{urlencode({name: value for name, value in chosen.items() if value is not None})}"
    here = f"{base}&page={page}" if group is not None else base

    def shown() -> Mapping[str, object]:
        size = FIRST_ROWS if group is None else PAGE_ROWS

        def found(number: int) -> QueuePage:
            return viewer.backend.queue_pages.page(size, (number - 1) * size, group, within)

        number = 1 if group is None else page
        on_page = found(number)
        pages = 1 if group is None or not on_page.parts else max(1, -(-on_page.parts[0].row_count // size))
        if number > pages:
            # The queue has become shorter since somebody came to the page.
            number, on_page = pages, found(pages)
        groups = groups_of(on_page, time.time(), format_minute, frozenset(selected))
        place = {"group": group, "within": within, "page": number, "pages": pages, "base": base, "here": here}
        return {"groups": groups, **place}

    return viewer.shared_page("queue.html", shown)


@router.get("/queue/heartbeat")
def heartbeat(viewer: CurrentViewer) -> Response:
    """Show the banner of all pages: nothing while the queue is worked."""
    return viewer.fragment("unworked.html", "unworked")


@router.post("/queue/change")
def change(
    request: Request,
    viewer: CurrentViewer,
    *,
    action: Annotated[str, Form(max_length=20)] = "",
    selected: Annotated[list[str], Form(max_length=10_000)] = [],  # noqa: B006
) -> Response:
    """Change the selected sessions. Raises BadInputError, and as the backend's actions."""
    if action not in _DONE:
        raise BadInputError(f"action: there is no {action!r}; use {', '.join(_DONE)}")
    if not selected:
        raise BadInputError("no session is selected; select one or more in the table")
    changed = _change(viewer.backend, action, _ids(viewer.backend, selected))
    note_sessions(request, changed)
    return viewer.announce(_announcement(changed, _DONE[action]))


def _ids(backend: LocalBackend, selected: list[str]) -> list[str]:
    """Return the ids of the selected sessions; a row of several sessions is one value. Raises NotFoundError."""
    ids: list[str] = []
    for value in selected:
        row = _ROW.fullmatch(value)
        ids += backend.queue_pages.members(row[1], int(row[2]), row[3]) if row else [value]
    return ids


def _change(backend: LocalBackend, action: str, selected: list[str]) -> list[SessionView]:
    match action:
        case "hold":
            return backend.hold(selected)
        case "release":
            return backend.release(selected)
        case _:
            return backend.terminate(selected, only_pending=True)


def _announcement(sessions: list[SessionView], done: str) -> str:
    if len(sessions) == 1:
        return f"{sessions[0].name} is {done}"
    return f"{len(sessions)} sessions are {done}"
