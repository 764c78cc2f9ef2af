"""`/api/v1/sessions/S/kernels/K/exec`: programs in kernels over WebSockets.

The first frame, a text, is `{"command": [...], "terminal": false}`. From then on binary frames are input and output.
Unless there is a terminal, the output has the engine's frames, which tell it from errors. Other text frames of the
client are `{"columns": N, "rows": N}` and `{"eof": true}`, the end of the input. The server's are `{"taken": N}`, the
number of bytes of input that the program's side has taken, and the last one: `{"exit_code": N}`, or `{"problem": ...}`
as an answer of the API would have it. A client sends no more than a window beyond what was taken: else a program that
does not read could keep it from reading what the program writes.
"""

import asyncio
import json
import socket
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, WebSocket, WebSocketDisconnect
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketState

from muster.core.values.errors import BadInputError, MusterError
from muster.service.local_backend import LocalBackend
from muster.service.reach.programs import Program
from muster.web.caller import service_of, websocket_caller
from muster.web.problems import problem
from muster.web.streams.caps import check_cap
from muster.web.streams.connection import SERVICE_RESTART, Connection

router = APIRouter()
MAX_PROGRAMS = 400
CHECK_S = 15.0
_PIECE_BYTES = 32 << 10
_FIRST_TIMEOUT_S = 20.0
_LAST_TIMEOUT_S = 10.0


class _Frame(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Start(_Frame):
    command: list[str] = Field(min_length=1)
    terminal: bool = False


class _Size(_Frame):
    columns: int = Field(ge=1, le=1000)
    rows: int = Field(ge=1, le=1000)


class _Eof(_Frame):
    eof: Literal[True]


_WORDS: TypeAdapter[_Size | _Eof] = TypeAdapter(_Size | _Eof)


class _Connection(Connection):
    """The connection of one client with one program."""

    def __init__(self, websocket: WebSocket, backend: LocalBackend) -> None:
        super().__init__(websocket, backend.user)
        self._backend = backend

    @property
    def has_stopped(self) -> bool:
        return self._stopped.is_set()

    async def start(self, session: str, kernel: str | None) -> Program:
        """Return the program that the first frame requests.

        Raises MusterError, WebSocketDisconnect and TimeoutError.
        """
        async with asyncio.timeout(_FIRST_TIMEOUT_S):
            message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        try:
            beginning = _Start.model_validate_json(message.get("text") or "")
        except ValidationError:
            raise BadInputError('the first frame is {"command": [...], "terminal": true or false}') from None
        return await run_in_threadpool(
            self._backend.reach.open_program, session, kernel, beginning.command, terminal=beginning.terminal
        )

    async def run(self, program: Program) -> None:
        """Carry input and output until one side ends. Raises MusterError."""
        program.connection.setblocking(False)
        tasks = [
            asyncio.create_task(part)
            for part in (self._output(program), self._input(program), self._watch(program), self._stopped.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The program's own end comes first where several have ended.
            for task in tasks:
                if task in done:
                    task.result()
                    break
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _output(self, program: Program) -> None:
        while data := await self._loop.sock_recv(program.connection, _PIECE_BYTES):
            await self._websocket.send_bytes(data)
        code = await run_in_threadpool(program.exit_code)
        await self._websocket.send_text(json.dumps({"exit_code": code}))

    async def _input(self, program: Program) -> None:
        taken = 0
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is None:
                await self._word(program, message["text"])
                continue
            # A program that reads no more loses what comes then, as at the end of a pipe.
            with suppress(BrokenPipeError, ConnectionResetError):
                await self._loop.sock_sendall(program.connection, data)
            taken += len(data)
            await self._websocket.send_text(json.dumps({"taken": taken}))

    async def _word(self, program: Program, text: str) -> None:
        """Raises BadInputError."""
        try:
            word = _WORDS.validate_json(text)
        except ValidationError:
            raise BadInputError('a text frame is {"columns": N, "rows": N} or {"eof": true}') from None
        if isinstance(word, _Size):
            await run_in_threadpool(program.resize, word.columns, word.rows)
            return
        with suppress(OSError):
            program.connection.shutdown(socket.SHUT_WR)

    async def _watch(self, program: Program) -> None:
        """End with the caller's right. Raises MusterError."""
        # No event says that a token is revoked.
        while await run_in_threadpool(self._may_continue, program):  # noqa: ASYNC110
            await asyncio.sleep(CHECK_S)
        raise BadInputError("the session does not run any more, or your token does not hold")

    def _may_continue(self, program: Program) -> bool:
        return self._backend.token_is_valid() and self._backend.still_runs(program.session)


@router.websocket("/sessions/{session}/kernels/{kernel}/exec")
async def execute(
    websocket: WebSocket, session: str, kernel: Annotated[str, Path(description="a dash for the main kernel")]
) -> None:
    with suppress(WebSocketDisconnect, TimeoutError):
        try:
            token = await run_in_threadpool(websocket_caller, websocket)
            backend = service_of(websocket).backend(token)
            view = await run_in_threadpool(
                backend.reach.kernel_with_terminal, session, None if kernel == "-" else kernel
            )
        except MusterError as error:
            await _refuse(websocket, error)
            return
        websocket.state.audit_sessions = [view.session.id]
        await websocket.accept()
        try:
            await _serve(websocket, backend, view.session.id, view.kernel.name)
        except MusterError as error:
            await _say(websocket, error)


async def _serve(websocket: WebSocket, backend: LocalBackend, session: str, kernel: str) -> None:
    """Raises MusterError, WebSocketDisconnect and TimeoutError."""
    programs: set[_Connection] = websocket.app.state.programs
    most_of_one = service_of(websocket).settings.web.terminals
    check_cap(programs, backend.user, most=MAX_PROGRAMS, most_of_one=most_of_one, what="programs")
    connection = _Connection(websocket, backend)
    programs.add(connection)
    try:
        program = await connection.start(session, kernel)
        try:
            await connection.run(program)
        finally:
            await run_in_threadpool(program.close)
    finally:
        programs.discard(connection)
    if connection.has_stopped:
        await websocket.close(SERVICE_RESTART, "the server stops")
    else:
        await _close_after_reading(websocket)


async def _refuse(websocket: WebSocket, error: MusterError) -> None:
    """Say in the first frame why there is no program: a client reads no body of a refused handshake."""
    websocket.state.audit_status = problem(error).status
    await websocket.accept()
    await _say(websocket, error)


async def _say(websocket: WebSocket, error: MusterError) -> None:
    said: dict[str, Any] = problem(error).model_dump()
    await websocket.send_text(json.dumps({"problem": said}))
    await _close_after_reading(websocket)


async def _close_after_reading(websocket: WebSocket) -> None:
    """Let the client close: what it still sends, if nobody read it, could take our last word with it."""
    if websocket.client_state is not WebSocketState.CONNECTED:
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(_LAST_TIMEOUT_S):
            while (await websocket.receive())["type"] != "websocket.disconnect":
                pass
            return
    await websocket.close()
