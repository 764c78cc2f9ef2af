"""`/queue`: who starts when and why not yet; hold, release and cancel several at once."""

import time
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Form, Query, Request, Response

from muster.core.model.session import Session
from muster.core.values.errors import BadInputError
from muster.service.local_backend import LocalBackend
from muster.web.api.requests import note_sessions
from muster.web.pages.queue_rows import MOST_ROWS, groups_of
from muster.web.viewer import Visiting

router = APIRouter(include_in_schema=False)
Selected = Annotated[list[str], Query(max_length=10_000)]
_DONE = {"hold": "held", "release": "released", "cancel": "cancelled"}


@router.get("/queue")
def queue(visitor: Visiting, selected: Selected = []) -> Response:  # noqa: B006 - FastAPI copies it
    """The live part asks with those that are selected, so that they stay so."""
    groups = groups_of(visitor.backend.visible_queue(), time.time(), _clock_text, frozenset(selected))
    return visitor.page("queue.html", groups=groups, most_rows=MOST_ROWS)


@router.post("/queue/change")
def change(
    request: Request,
    visitor: Visiting,
    *,
    action: Annotated[str, Form(max_length=20)] = "",
    selected: Annotated[list[str], Form(max_length=10_000)] = [],  # noqa: B006
) -> Response:
    """Raises BadInputError, and as the backend's own."""
    if action not in _DONE:
        raise BadInputError(f"action: there is no {action!r}; use {', '.join(_DONE)}")
    if not selected:
        raise BadInputError("selected: no session is; select one or more in the table")
    changed = _done(visitor.backend, action, selected)
    note_sessions(request, changed)
    return visitor.announce(_told(changed, _DONE[action]))


def _done(backend: LocalBackend, action: str, selected: list[str]) -> list[Session]:
    match action:
        case "hold":
            return backend.hold(selected)
        case "release":
            return backend.release(selected)
        case _:
            return backend.terminate(selected, only_pending=True)


def _told(sessions: list[Session], done: str) -> str:
    if len(sessions) == 1:
        return f"{sessions[0].name} is {done}"
    return f"{len(sessions)} sessions are {done}"


def _clock_text(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
