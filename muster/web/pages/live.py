"""`/live`: which sessions change, for the pages; what they show of it they ask for themselves."""

import json
from functools import lru_cache

from fastapi import APIRouter, Request
from fastapi.responses import Response

from muster.core.model.session import FINAL
from muster.service.sessions.live import LiveChange
from muster.web.streams.event_routes import LastEventId
from muster.web.streams.subscribers import listen
from muster.web.viewer import Visiting

router = APIRouter(include_in_schema=False)


@router.get("/live")
async def live(request: Request, visitor: Visiting, *, last_event_id: LastEventId = None) -> Response:
    return await listen(request, visitor.backend, _event, last_event_id, visitor.is_signed_in)


# Once for all who listen, not for each.
@lru_cache(maxsize=1000)
def _event(live: LiveChange) -> str:
    """`membership`: whether lists of sessions have one more, or one less."""
    change = live.change
    membership = change.from_state is None or change.to_state in FINAL
    told = {"id": change.session_id, "membership": membership}
    return f"id: {change.id}\nevent: session\ndata: {json.dumps(told)}\n\n"
