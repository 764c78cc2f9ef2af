"""Programs in kernels by a server's WebSocket: each has a socket here, as one of an engine has."""

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection

from muster.contract.values import printable
from muster.remote.client import Client, ServerError, error_of

_PIECE_BYTES = 16 << 10
# Less than any socket holds: sending never waits, which would keep the WebSocket from reading.
_WINDOW_BYTES = 64 << 10
_LEFT = "the server closed the connection before the program ended"


class RemotePrograms:
    """Programs of one kernel of a session, by the API."""

    def __init__(self, client: Client, session_id: str, session_name: str, kernel: str) -> None:
        self._client = client
        self._kernel = kernel
        self.session_id = session_id
        self.title = f"{session_name}:{kernel}"

    @contextmanager
    def start(self, command: Sequence[str], *, terminal: bool = False) -> Iterator["_RemoteExecution"]:
        """Start a program. Raises as the server answers, and ServerError."""
        path = f"sessions/{self.session_id}/kernels/{self._kernel}/exec"
        with self._client.websocket(path) as websocket:
            websocket.send(json.dumps({"command": list(command), "terminal": terminal}))
            with _RemoteExecution(websocket).running() as execution:
                yield execution


class _RemoteExecution:
    """A program whose input and output go by a WebSocket."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket
        self.connection, self._inner = socket.socketpair()
        self._said: dict[str, object] = {}
        self._news = threading.Condition()
        self._taken_bytes, self._has_ended = 0, False
        self._broke_off = ""

    @contextmanager
    def running(self) -> Iterator["_RemoteExecution"]:
        threads = [threading.Thread(target=part, name="program", daemon=True) for part in (self._read, self._write)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._websocket.close()
            with self._news:
                self._has_ended = True
                self._news.notify_all()
            for one in (self.connection, self._inner):
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            self.connection.close()
            self._inner.close()

    def resize(self, columns: int, rows: int) -> None:
        with suppress(WebSocketException):
            self._websocket.send(json.dumps({"columns": columns, "rows": rows}))

    def exit_code(self) -> int:
        """Raises the server's error, and ServerError where it has left before the program's end."""
        if "problem" in self._said:
            raise error_of(self._said["problem"]) or ServerError(_LEFT)
        code = self._said.get("exit_code")
        if not isinstance(code, int):
            raise ServerError(f"{_LEFT}: {self._broke_off}" if self._broke_off else _LEFT)
        return code

    def _read(self) -> None:
        """Pass on what comes, up to the last word."""
        try:
            for message in self._websocket:
                if isinstance(message, bytes):
                    self._inner.sendall(message)
                elif not self._takes(json.loads(message)):
                    break
        except (OSError, WebSocketException, ValueError) as error:
            self._broke_off = printable(str(error))
        with self._news:
            self._has_ended = True
            self._news.notify_all()
        with suppress(OSError):
            self._inner.shutdown(socket.SHUT_WR)

    def _takes(self, said: dict[str, object]) -> bool:
        """Return whether the program goes on, after a word of the server's; keep its last one."""
        match said:
            case {"taken": int(taken)}:
                with self._news:
                    self._taken_bytes = taken
                    self._news.notify_all()
                return True
            case _:
                self._said = said
                return False

    def _write(self) -> None:
        sent = 0
        try:
            while piece := self._inner.recv(_PIECE_BYTES):
                with self._news:
                    self._news.wait_for(lambda: self._has_ended or sent - self._taken_bytes < _WINDOW_BYTES)  # noqa: B023
                    if self._has_ended:
                        return
                self._websocket.send(piece)
                sent += len(piece)
            self._websocket.send(json.dumps({"eof": True}))
        except (OSError, WebSocketException):
            pass
