"""A terminal in a kernel over a WebSocket.

Binary frames are what is typed and what is shown. Text frames are JSON: the browser's `{"columns": N, "rows": N}`,
and from either side how many bytes of all that it was sent it has dealt with, `{"taken": N}`. Neither side sends more
than a window beyond that, so that no program and no paste fills the other's memory.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, WebSocket, WebSocketDisconnect
from fastapi.concurrency import run_in_threadpool

from muster.core.values.errors import BadInputError, MusterError, StoreUnavailableError
from muster.service.identity.tokens import NoTokenError
from muster.service.reach.terminal import Terminal
from muster.web.caller import service_of
from muster.web.problems import TooManyError, problem
from muster.web.viewer import Visitor, cookie_name, websocket_visitor

router = APIRouter()
MOST_TERMINALS = 200
MOST_OF_ONE_USER = 40
WINDOW_BYTES = 256 << 10
CHECK_S = 15.0
_TELL_BYTES = 16 << 10
_LOGIN_POLL_S = 0.02
# Of a closing frame, by the protocol.
_MOST_REASON_BYTES = 123
_SERVER_STOPS = 1012


@dataclass(frozen=True, slots=True)
class _Ending:
    """Why it is over. Codes beyond 4000 are HTTP statuses."""

    code: int
    reason: str


class _Conversation:
    """Between one browser and one terminal."""

    def __init__(self, websocket: WebSocket, visitor: Visitor) -> None:
        self.user = visitor.user
        self._websocket = websocket
        self._visitor = visitor
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._shown, self._taken_there = 0, 0
        self._room = asyncio.Event()
        self._typed = bytearray()
        self._has_typed = asyncio.Event()
        self._written, self._told = 0, 0

    def stop(self) -> None:
        """From any thread, and from signal handlers: the server ends."""
        self._loop.call_soon_threadsafe(self._stopped.set)

    async def run(self, terminal: Terminal) -> _Ending | None:
        """None where the browser has gone."""
        parts = (self._to_browser, self._from_browser, self._to_shell, self._watch, self._stop)
        tasks = [asyncio.create_task(part(terminal)) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        except WebSocketDisconnect:
            return None
        except BadInputError as error:
            return _Ending(4400, str(error))
        finally:
            for task in tasks:
                task.cancel()
            done, _ = await asyncio.wait(tasks)
            for task in done:
                # Whatever else went wrong as it ended is of no interest, but must have been asked for.
                if not task.cancelled():
                    task.exception()

    async def _to_browser(self, terminal: Terminal) -> _Ending:
        notice = terminal.session.notice
        if notice:
            await self._show(f"muster: {notice.strip()}\r\n".encode())
        while True:
            while self._shown - self._taken_there >= WINDOW_BYTES:
                self._room.clear()
                await self._room.wait()
            try:
                data = terminal.read()
            except BlockingIOError:
                await _ready(self._loop.add_reader, self._loop.remove_reader, terminal.fileno())
                continue
            if not data:
                return _Ending(1000, "the shell has ended")
            await self._show(data)

    async def _show(self, data: bytes) -> None:
        self._shown += len(data)
        await self._websocket.send_bytes(data)

    async def _from_browser(self, terminal: Terminal) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is None:
                self._hear(terminal, message["text"])
                continue
            if len(self._typed) + len(data) > WINDOW_BYTES:
                raise BadInputError("more was typed than is read; wait until {taken} tells of it")
            self._typed += data
            self._has_typed.set()

    def _hear(self, terminal: Terminal, text: str) -> None:
        """Raises BadInputError."""
        try:
            told = json.loads(text)
        except (ValueError, RecursionError):
            told = None
        match told:
            case {"columns": int(columns), "rows": int(rows)}:
                terminal.resize(columns, rows)
            case {"taken": int(taken)} if self._taken_there <= taken <= self._shown:
                self._taken_there = taken
                self._room.set()
            case _:
                raise BadInputError('a text frame is {"columns": N, "rows": N} or {"taken": N}')

    async def _to_shell(self, terminal: Terminal) -> None:
        while not terminal.takes_input:  # noqa: ASYNC110 - nobody is told when terminal modes change
            await asyncio.sleep(_LOGIN_POLL_S)
        while True:
            if not self._typed:
                self._has_typed.clear()
                await self._has_typed.wait()
            try:
                written = terminal.write(bytes(self._typed))
            except BlockingIOError:
                await _ready(self._loop.add_writer, self._loop.remove_writer, terminal.fileno())
                continue
            del self._typed[:written]
            self._written += written
            if self._written - self._told >= _TELL_BYTES:
                self._told = self._written
                await self._websocket.send_text(json.dumps({"taken": self._told}))

    async def _watch(self, terminal: Terminal) -> _Ending:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                ending = await run_in_threadpool(self._must_end, terminal)
            except StoreUnavailableError:
                return _Ending(4503, "the database does not answer")
            if ending is not None:
                return ending

    def _must_end(self, terminal: Terminal) -> _Ending | None:
        connection = self._visitor.connection
        try:
            service_of(connection).tokens.signed_in(connection.cookies[cookie_name(connection)])
        except NoTokenError as error:
            return _Ending(4401, str(error))
        if not self._visitor.backend.still_runs(terminal.session):
            return _Ending(4409, "the session does not run any more")
        return None

    async def _stop(self, _terminal: Terminal) -> _Ending:
        await self._stopped.wait()
        return _Ending(_SERVER_STOPS, "the server stops")


@router.websocket("/sessions/{session}/terminal")
async def terminal(
    websocket: WebSocket, session: str, *, kernel: Annotated[str | None, Query(max_length=64)] = None
) -> None:
    visitor = await websocket_visitor(websocket)
    if visitor is None:
        return
    with suppress(WebSocketDisconnect):
        ending = await _conversed(websocket, visitor, session, kernel)
        if ending is not None:
            await websocket.close(ending.code, _short(ending.reason))


async def _conversed(websocket: WebSocket, visitor: Visitor, session: str, kernel: str | None) -> _Ending | None:
    open_now: set[_Conversation] = websocket.app.state.terminals
    conversation = _Conversation(websocket, visitor)
    try:
        _check_room(open_now, visitor.user)
        open_now.add(conversation)
        opened = await run_in_threadpool(visitor.backend.open_terminal, session, kernel)
        try:
            websocket.state.audit_sessions = [opened.session.id]
            await websocket.accept()
            return await conversation.run(opened)
        finally:
            opened.end()
    except MusterError as error:
        told = problem(error)
        # A browser tells its page nothing of a handshake that was refused.
        websocket.state.audit_status = told.status
        await websocket.accept()
        return _Ending(4000 + told.status, told.detail)
    finally:
        open_now.discard(conversation)


def _check_room(open_now: set[_Conversation], user: str) -> None:
    """Raises TooManyError."""
    if len(open_now) >= MOST_TERMINALS:
        raise TooManyError(f"{MOST_TERMINALS} terminals are open; try again later")
    if sum(one.user == user for one in open_now) >= MOST_OF_ONE_USER:
        raise TooManyError(f"{MOST_OF_ONE_USER} terminals of yours are open; close one")


async def _ready(add: Callable[..., Any], remove: Callable[[int], Any], fileno: int) -> None:
    ready = asyncio.Event()
    add(fileno, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fileno)


def _short(reason: str) -> str:
    data = reason.encode()
    return data[:_MOST_REASON_BYTES].decode(errors="ignore")
