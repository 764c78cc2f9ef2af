"""`/api/v1/events`: changes of sessions as they happen, as server-sent events."""

import json
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from muster.core.model.session import Session
from muster.core.values.units import timestamp
from muster.service.sessions.live import LiveChange
from muster.service.sessions.views import SessionView
from muster.web.caller import Backend
from muster.web.problems import answers
from muster.web.streams.subscribers import event_stream

router = APIRouter(tags=["events"])
LastEventId = Annotated[int | None, Header(ge=0, le=1 << 53, description="begin with the changes after this event")]


@router.get(
    "/events",
    responses=answers() | {200: {"description": "Changes as they happen", "content": {"text/event-stream": {}}}},
    response_class=Response,
)
async def events(request: Request, backend: Backend, *, last_event_id: LastEventId = None) -> Response:
    """Stream events named `session` of the sessions that the token's user may see.

    Every 15 s a comment shows that the server is there. A reader that is too slow is cut off, and may reconnect with
    its Last-Event-ID.
    """
    event = _event_for_administrators if backend.token.sees_all else _event_for_owner
    return await event_stream(request, backend, event, last_event_id, backend.token_is_valid)


# Encoded once for all subscribers.
@lru_cache(maxsize=1000)
def _event_for_administrators(live: LiveChange) -> str:
    return _event(live, live.session)


@lru_cache(maxsize=1000)
def _event_for_owner(live: LiveChange) -> str:
    return _event(live, live.visible_to_owner)


def _event(live: LiveChange, session: Session) -> str:
    change = live.change
    data: dict[str, Any] = {
        "at": timestamp(change.at),
        "from": change.from_state,
        "to": change.to_state,
        "reason": change.reason,
        "session": SessionView.of(session).as_json(),
    }
    return f"id: {change.id}\nevent: session\ndata: {json.dumps(data)}\n\n"
