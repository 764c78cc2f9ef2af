"""`/api/v1/events`: changes of sessions as they happen, as server-sent events."""

import json
from functools import lru_cache
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from muster.core.model.session import Session
from muster.core.values.moment import timestamp
from muster.service.sessions.live import LiveChange
from muster.service.sessions.views import session_json
from muster.web.caller import Asked
from muster.web.problems import answers
from muster.web.streams.subscribers import listen

router = APIRouter(tags=["events"])
LastEventId = Annotated[int | None, Header(ge=0, le=1 << 53, description="what came after this event is told first")]


@router.get(
    "/events",
    responses=answers(422) | {200: {"description": "Changes as they happen", "content": {"text/event-stream": {}}}},
    response_class=Response,
)
async def events(request: Request, asked: Asked, *, last_event_id: LastEventId = None) -> Response:
    """Events named `session`, of the sessions that the token's user may see; a comment every 15 s shows that the server
    is there. A reader that is too slow is cut off: it comes back with its Last-Event-ID.
    """
    event = _to_all_seeing if asked.token.sees_all else _to_owner
    return await listen(request, asked, event, last_event_id, asked.token_is_valid)


# Once for all who listen, not for each.
@lru_cache(maxsize=1000)
def _to_all_seeing(live: LiveChange) -> str:
    return _event(live, live.session)


@lru_cache(maxsize=1000)
def _to_owner(live: LiveChange) -> str:
    return _event(live, live.visible_to_owner)


def _event(live: LiveChange, session: Session) -> str:
    change = live.change
    told: dict[str, Any] = {
        "at": timestamp(change.at),
        "from": change.from_state,
        "to": change.to_state,
        "reason": change.reason,
        "session": session_json(session),
    }
    return f"id: {change.id}\nevent: session\ndata: {json.dumps(told)}\n\n"
