"""`/live`: an event for each change of a session, for the pages, which request themselves what they show of it."""

import json
from functools import lru_cache

from fastapi import APIRouter, Request
from fastapi.responses import Response

from muster.core.model.session import FINAL
from muster.service.sessions.live import LiveChange
from muster.web.streams.event_routes import LastEventId
from muster.web.streams.subscribers import event_stream
from muster.web.viewer import CurrentViewer

router = APIRouter(include_in_schema=False)


@router.get("/live")
async def live(request: Request, viewer: CurrentViewer, *, last_event_id: LastEventId = None) -> Response:
    return await event_stream(request, viewer.backend, _event, last_event_id, viewer.is_signed_in)


# Encoded once for all subscribers.
@lru_cache(maxsize=1000)
def _event(live: LiveChange) -> str:
    """Return a change as an event. `membership`: a list of sessions gets one more, or one less."""
    change = live.change
    membership = change.from_state is None or change.to_state in FINAL
    data = {"id": change.session_id, "membership": membership}
    return f"id: {change.id}\nevent: session\ndata: {json.dumps(data)}\n\n"
