"""`/api/v1/events`: changes of sessions as they happen, as server-sent events."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, suppress
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from muster.core.errors import MusterError
from muster.service.live import LiveChange, LiveChanges
from muster.service.local_backend import LocalBackend
from muster.service.views import session_json, timestamp
from muster.web.caller import Asked, still_valid
from muster.web.problems import TooManyError, answers

router = APIRouter(tags=["events"])
HEARTBEAT_S = 15.0
MOST_LISTENERS = 1000
_WAITING = 1000


@router.get(
    "/events",
    responses=answers(422) | {200: {"description": "Changes as they happen", "content": {"text/event-stream": {}}}},
    response_class=Response,
)
async def events(
    request: Request,
    asked: Asked,
    *,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=1 << 53, description="what came after this event is told first")
    ] = None,
) -> Response:
    """Events named `session`, of the sessions that the token's user may see; a comment every 15 s shows that the server
    is there. A reader that is too slow is cut off: it comes back with its Last-Event-ID.
    """
    listeners: set[_Listener] = request.app.state.listeners
    if len(listeners) >= MOST_LISTENERS:
        raise TooManyError(f"{MOST_LISTENERS} listen already; try again later")
    listener = _Listener(asked, request.app.state.live)
    with ExitStack() as stack:
        listeners.add(listener)
        stack.callback(listeners.discard, listener)
        stack.callback(listener.end)
        now = await run_in_threadpool(listener.begin)
        missed = [] if last_event_id is None else await run_in_threadpool(listener.missed, last_event_id, now)
        # From here on the stream ends it.
        ending = stack.pop_all()
    return StreamingResponse(_stream(listener, ending, now, missed), media_type="text/event-stream")


class _Listener:
    def __init__(self, asked: LocalBackend, live: LiveChanges) -> None:
        self._asked = asked
        self._live = live
        self._loop = asyncio.get_running_loop()
        self._told: asyncio.Queue[Sequence[LiveChange] | None] = asyncio.Queue(_WAITING)
        self._hear = self._heard  # one object, so that what is added can be removed

    def begin(self) -> int:
        return self._live.add(self._hear)

    def end(self) -> None:
        self._live.remove(self._hear)

    def stop(self) -> None:
        """From any thread, and from signal handlers: its stream ends."""
        self._loop.call_soon_threadsafe(self._put_end)

    def missed(self, number: int, until: int) -> list[LiveChange]:
        return self._mine(self._live.after(number, until))

    async def get(self, timeout_s: float) -> Sequence[LiveChange] | None:
        """None where this reader was too slow, or the server ends. Raises TimeoutError."""
        return await asyncio.wait_for(self._told.get(), timeout_s)

    async def may_go_on(self) -> bool:
        """Whether its token is still worth something."""
        return await run_in_threadpool(still_valid, self._asked)

    def _heard(self, changes: Sequence[LiveChange]) -> None:
        mine = self._mine(changes)
        if mine:
            self._loop.call_soon_threadsafe(self._put, mine)

    def _mine(self, changes: Sequence[LiveChange]) -> list[LiveChange]:
        return [change for change in changes if self._asked.sees(change.session)]

    def _put(self, changes: Sequence[LiveChange]) -> None:
        if self._told.qsize() >= _WAITING - 1:
            self._put_end()
        else:
            self._told.put_nowait(changes)

    def _put_end(self) -> None:
        self.end()
        if not self._told.full():
            self._told.put_nowait(None)


async def _stream(listener: _Listener, ending: ExitStack, now: int, missed: Sequence[LiveChange]) -> AsyncIterator[str]:
    # Where its token or the database cannot be asked after, its reader is cut off, and comes back.
    with ending, suppress(MusterError):
        yield f": since {now}\n\n" + "".join(map(_event, missed))
        while True:
            try:
                changes = await listener.get(HEARTBEAT_S)
            except TimeoutError:
                if not await listener.may_go_on():
                    return
                yield ": here\n\n"
                continue
            if changes is None:
                return
            yield "".join(map(_event, changes))


def _event(live: LiveChange) -> str:
    change = live.change
    told: dict[str, Any] = {
        "at": timestamp(change.at),
        "from": change.from_state,
        "to": change.to_state,
        "reason": change.reason,
        "session": session_json(live.session),
    }
    return f"id: {change.id}\nevent: session\ndata: {json.dumps(told)}\n\n"
