"""Terminals in kernels over WebSockets.

Binary frames are input and output. Text frames are JSON: `{"columns": N, "rows": N}` from the browser, and from either
side `{"taken": N}`, the number of bytes that it has processed of all that it received. Neither side sends more than a
window beyond that number, so that no program and no paste fills the other side's memory.
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
from muster.web.problems import problem
from muster.web.streams.caps import check_cap
from muster.web.streams.connection import SERVICE_RESTART, Connection
from muster.web.viewer import Viewer, websocket_viewer

router = APIRouter()
MAX_TERMINALS = 200
WINDOW_BYTES = 256 << 10
CHECK_S = 15.0
_ACKNOWLEDGE_BYTES = 16 << 10
_LOGIN_POLL_S = 0.02
# The limit of a close frame, by the protocol.
_MAX_REASON_BYTES = 123


@dataclass(frozen=True, slots=True)
class _Close:
    """A close code and its reason. Codes beyond 4000 are 4000 plus an HTTP status."""

    code: int
    reason: str


class _Connection(Connection):
    """The connection of one browser with one terminal."""

    def __init__(self, websocket: WebSocket, viewer: Viewer) -> None:
        super().__init__(websocket, viewer.user)
        self._viewer = viewer
        self._output_bytes, self._shown_bytes = 0, 0
        self._has_room = asyncio.Event()
        self._input = bytearray()
        self._has_input = asyncio.Event()
        self._written_bytes, self._acknowledged_bytes = 0, 0

    async def run(self, terminal: Terminal) -> _Close | None:
        """Carry input and output; return how to close, None where the browser has closed the connection."""
        parts = (self._to_browser, self._from_browser, self._to_shell, self._watch, self._stop)
        tasks = [asyncio.create_task(part(terminal)) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        except WebSocketDisconnect:
            return None
        except BadInputError as error:
            return _Close(4400, str(error))
        except MusterError as error:
            refusal = problem(error)
            return _Close(4000 + refusal.status, refusal.detail)
        finally:
            for task in tasks:
                task.cancel()
            done, _ = await asyncio.wait(tasks)
            for task in done:
                # Retrieve errors of the cancelled tasks, or asyncio reports them.
                if not task.cancelled():
                    task.exception()

    async def _to_browser(self, terminal: Terminal) -> _Close:
        notice = terminal.session.notice
        if notice:
            await self._show(f"muster: {notice.strip()}\r\n".encode())
        while True:
            while self._output_bytes - self._shown_bytes >= WINDOW_BYTES:
                self._has_room.clear()
                await self._has_room.wait()
            try:
                data = terminal.read()
            except BlockingIOError:
                await _ready(self._loop.add_reader, self._loop.remove_reader, terminal.fileno())
                continue
            if not data:
                return _Close(1000, "the shell has ended")
            await self._show(data)

    async def _show(self, data: bytes) -> None:
        self._output_bytes += len(data)
        await self._websocket.send_bytes(data)

    async def _from_browser(self, terminal: Terminal) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is None:
                await self._handle_text(terminal, message["text"])
                continue
            if len(self._input) + len(data) > WINDOW_BYTES:
                raise BadInputError("more input was sent than the window allows; wait for {taken}")
            self._input += data
            self._has_input.set()

    async def _handle_text(self, terminal: Terminal, text: str) -> None:
        """Resize the terminal or take an acknowledgement. Raises BadInputError."""
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        match message:
            case {"columns": int(columns), "rows": int(rows)} if bool not in {type(columns), type(rows)}:
                # The broker may be asked to: no other request waits for its answer.
                await run_in_threadpool(terminal.resize, columns, rows)
            case {"taken": int(taken)} if self._shown_bytes <= taken <= self._output_bytes:
                self._shown_bytes = taken
                self._has_room.set()
            case _:
                raise BadInputError('a text frame is {"columns": N, "rows": N} or {"taken": N}')

    async def _to_shell(self, terminal: Terminal) -> None:
        while not terminal.takes_input:  # noqa: ASYNC110 - changes of terminal modes cause no event
            await asyncio.sleep(_LOGIN_POLL_S)
        while True:
            if not self._input:
                self._has_input.clear()
                await self._has_input.wait()
            try:
                written = terminal.write(bytes(self._input))
            except BlockingIOError:
                await _ready(self._loop.add_writer, self._loop.remove_writer, terminal.fileno())
                continue
            del self._input[:written]
            self._written_bytes += written
            if self._written_bytes - self._acknowledged_bytes >= _ACKNOWLEDGE_BYTES:
                self._acknowledged_bytes = self._written_bytes
                await self._websocket.send_text(json.dumps({"taken": self._acknowledged_bytes}))

    async def _watch(self, terminal: Terminal) -> _Close:
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                close = await run_in_threadpool(self._close_reason, terminal)
            except StoreUnavailableError:
                return _Close(4503, "the database does not answer")
            if close is not None:
                return close

    def _close_reason(self, terminal: Terminal) -> _Close | None:
        """Return how to close where the user has signed out, has other rights, or the session has ended."""
        try:
            token = self._viewer.signed_in()
        except NoTokenError as error:
            return _Close(4401, str(error))
        if not token.gives_what(self._viewer.token):
            return _Close(4403, "your rights have changed since; connect again")
        if not self._viewer.backend.still_runs(terminal.session):
            return _Close(4409, "the session does not run any more")
        return None

    async def _stop(self, _terminal: Terminal) -> _Close:
        await self._stopped.wait()
        return _Close(SERVICE_RESTART, "the server stops")


@router.websocket("/sessions/{session}/terminal")
async def terminal(
    websocket: WebSocket, session: str, *, kernel: Annotated[str | None, Query(max_length=64)] = None
) -> None:
    with suppress(WebSocketDisconnect):
        try:
            viewer = await websocket_viewer(websocket)
        except MusterError as error:
            close: _Close | None = await _refused(websocket, error)
        else:
            close = None if viewer is None else await _connect(websocket, viewer, session, kernel)
        if close is not None:
            await websocket.close(close.code, _short(close.reason))


async def _connect(websocket: WebSocket, viewer: Viewer, session: str, kernel: str | None) -> _Close | None:
    connections: set[_Connection] = websocket.app.state.terminals
    connection = _Connection(websocket, viewer)
    try:
        most_of_one = service_of(websocket).settings.web.terminals
        check_cap(connections, viewer.user, most=MAX_TERMINALS, most_of_one=most_of_one, what="terminals")
        connections.add(connection)
        opened = await run_in_threadpool(viewer.backend.reach.open_terminal, session, kernel)
        try:
            websocket.state.audit_sessions = [opened.session.id]
            await websocket.accept()
            return await connection.run(opened)
        finally:
            opened.end()
    except MusterError as error:
        return await _refused(websocket, error)
    finally:
        connections.discard(connection)


async def _refused(websocket: WebSocket, error: MusterError) -> _Close:
    """Return how to close: a page cannot read the reason of a refused handshake, so it is accepted before."""
    refusal = problem(error)
    websocket.state.audit_status = refusal.status
    await websocket.accept()
    return _Close(4000 + refusal.status, refusal.detail)


async def _ready(add: Callable[..., Any], remove: Callable[[int], Any], fileno: int) -> None:
    ready = asyncio.Event()
    add(fileno, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fileno)


def _short(reason: str) -> str:
    data = reason.encode()
    return data[:_MAX_REASON_BYTES].decode(errors="ignore")
