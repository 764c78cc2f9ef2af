"""`/queue`: when waiting sessions start and why not yet; hold, release and cancel several at once."""

import time
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response

from muster.core.values.errors import BadInputError
from muster.core.values.units import format_minute
from muster.service.local_backend import LocalBackend
from muster.service.sessions.views import SessionView
from muster.web.api.requests import note_sessions
from muster.web.pages.queue_rows import MAX_ROWS, groups_of
from muster.web.viewer import CurrentViewer

router = APIRouter(include_in_schema=False)
Selected = Annotated[list[str], Query(max_length=10_000)]
_DONE = {"hold": "held", "release": "released", "cancel": "cancelled"}


@router.get("/queue")
def queue(viewer: CurrentViewer, selected: Selected = []) -> Response:  # noqa: B006 - FastAPI copies it
    """Show the queue. The live part sends the selected sessions, so that they stay selected."""
    groups = groups_of(viewer.backend.visible_queue(), time.time(), format_minute, frozenset(selected))
    return viewer.page("queue.html", groups=groups, max_rows=MAX_ROWS)


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
        raise BadInputError("selected: no session is selected; select one or more in the table")
    changed = _change(viewer.backend, action, selected)
    note_sessions(request, changed)
    return viewer.announce(_announcement(changed, _DONE[action]))


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
