"""The broker: it has the database, the keys and root's rights, and does for the web server what callers may do.

Each request carries what its caller has shown: the secret of a token, or of a browser's sign-in. The broker looks that
up itself and calls what the command line calls, with the same checks, so the server can do no more than its callers.
"""

import logging
import pickle
import queue
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Any

from muster.core.values.errors import BadInputError, MusterError
from muster.service.identity.tokens import NoTokenError
from muster.service.local_backend import LocalBackend
from muster.service.reach.terminal import Terminal
from muster.service.service import Service
from muster.service.sessions.live import LiveChange
from muster.web.separation.operations import OPERATIONS, Credential, Request, parse_request
from muster.web.separation.requests import CallerRequests, ServerRequests
from muster.web.separation.wire import MOST_REQUEST_BYTES, MalformedError, receive, send

log = logging.getLogger("muster.broker")
# More than the server's threads, logs, terminals and opened apps together.
MOST_CONNECTIONS = 1500
# Of changes of sessions, each of some hundreds at the most.
_MOST_BATCHES = 1000
_MOST_WORD_BYTES = 64
_END_PATIENCE_S = 5.0


class Broker:
    """A broker for one web server. `reader` has the numbers of the user and the group of the server's process."""

    def __init__(self, service: Service, reader: tuple[int, int] | None) -> None:
        self._service = service
        self._server = ServerRequests(service)
        self._reader = reader
        self._connections: dict[threading.Thread, socket.socket] = {}

    def serve(self, control: socket.socket) -> None:
        """Serve all connections that come by `control`, until the server closes that."""
        with self._server.live.running(), closing(self._server.usage):
            try:
                while True:
                    data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
                    for descriptor in descriptors:
                        self._begin(socket.socket(fileno=descriptor))
                    if not data:
                        return
            except OSError as error:
                log.warning("the server's connection: %s", error)
            finally:
                self._end()

    def _begin(self, connection: socket.socket) -> None:
        self._connections = {thread: its for thread, its in self._connections.items() if thread.is_alive()}
        if len(self._connections) >= MOST_CONNECTIONS:
            connection.close()
            return
        # A connection that hangs holds up nobody but itself, and not our end.
        thread = threading.Thread(target=self._serve, args=(connection,), name="broker", daemon=True)
        self._connections[thread] = connection
        thread.start()

    def _end(self) -> None:
        """End what is open: the server has left."""
        deadline = time.monotonic() + _END_PATIENCE_S
        for connection in self._connections.values():
            _shut(connection)
        for thread in self._connections:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while (message := receive(connection, MOST_REQUEST_BYTES)) is not None:
                    self._answer(connection, parse_request(message))
            except MalformedError as error:
                log.error("the web server sent %s", error)  # noqa: TRY400 - one line
            except OSError:
                pass  # the server has left

    def _answer(self, connection: socket.socket, request: Request) -> None:
        """Do what is requested. Raises OSError and MalformedError."""
        operation = OPERATIONS.get(request.operation)
        if operation is None:
            raise MalformedError("a request for an operation that there is not")
        face, _, name = request.operation.partition(".")
        try:
            called_on = self._called_on(face, name, request.credential)
            arguments = operation.decoded(request.arguments)
            if face == "open":
                self._open(connection, name, arguments, called_on)
                return
            answer = _done(operation.function(called_on, **arguments))
        except MalformedError as error:
            answer = _refused(BadInputError(f"it cannot be passed on: {error}"))
        except MusterError as error:
            answer = _refused(error)
        except _LeftError as left:
            raise OSError from left
        except Exception:
            log.exception("%s failed", request.operation)
            answer = _refused(MusterError("it failed; the server's log says why"))
        send(connection, answer)

    def _called_on(self, face: str, name: str, credential: Credential | None) -> Any:  # noqa: ANN401 - OPERATIONS' own
        """Raises NoTokenError."""
        if face == "server":
            return self._server
        if (face, name) == ("open", "changes"):
            return self._server.live
        caller = self._caller(credential)
        match face:
            case "caller":
                return caller
            case "backend" | "open":
                return caller.backend
            case _:
                return getattr(caller.backend, face)

    def _caller(self, credential: Credential | None) -> CallerRequests:
        """Raises NoTokenError."""
        if credential is None:
            raise NoTokenError
        tokens = self._service.tokens
        found = tokens.of_secret if credential.kind == "token" else tokens.signed_in
        return CallerRequests(self._service, found(credential.secret))

    def _open(self, connection: socket.socket, name: str, arguments: dict[str, Any], backend: LocalBackend) -> None:
        """Open what lasts as long as its connection. Raises MusterError before it is open, then _LeftError."""
        match name:
            case "changes":
                self._pass_changes(connection)
            case "app":
                session, app = backend.openable_app(**arguments)
                with closing(backend.open_app_tunnel(session, app)) as way:
                    if self._reader is not None:
                        way.give_to(*self._reader)
                    _send(connection, _done((session, app, way.token, way.socket)))
                    while _received(connection) is not None:
                        _send(connection, _done(way.is_open()))
            case "terminal":
                terminal = backend.open_terminal(**arguments)
                try:
                    _send(connection, _done(terminal.session), terminal.fileno())
                    while (message := _received(connection)) is not None:
                        _send(connection, _resized(terminal, message))
                finally:
                    terminal.end()
            case _:
                with backend.log(**arguments) as pieces:
                    _send(connection, _done(None))
                    _pass_log(connection, pieces)

    def _pass_changes(self, connection: socket.socket) -> None:
        """Send all changes of sessions from now on."""
        batches: queue.Queue[Sequence[LiveChange] | None] = queue.Queue(_MOST_BATCHES)

        def note(changes: Sequence[LiveChange]) -> None:
            try:
                batches.put_nowait(changes)
            except queue.Full:
                # It reads nothing: who waits for it would keep all changes for it.
                _shut(connection)

        def watch() -> None:
            with suppress(_LeftError):
                _received(connection)
            with suppress(queue.Full):
                batches.put_nowait(None)
            _shut(connection)

        number = self._server.live.add(note)
        try:
            threading.Thread(target=watch, name="broker-changes", daemon=True).start()
            _send(connection, _done(number))
            while (changes := batches.get()) is not None:
                _send(connection, _done(changes))
        finally:
            self._server.live.remove(note)
            _shut(connection)


class _LeftError(Exception):
    """The server has closed its end, or sent what it may not here."""


def _pass_log(connection: socket.socket, pieces: Iterable[bytes]) -> None:
    """Send the pieces of a log, until it ends or the server closes its end."""

    def watch() -> None:
        with suppress(_LeftError):
            _received(connection)
        if hasattr(pieces, "close"):
            # A generator cannot be closed while a thread is in it: that ends with the next piece.
            with suppress(ValueError, OSError):
                pieces.close()

    threading.Thread(target=watch, name="broker-log", daemon=True).start()
    try:
        for piece in pieces:
            _send(connection, _done(piece))
        _send(connection, _done(None))
    finally:
        _shut(connection)


def _resized(terminal: Terminal, message: bytes) -> bytes:
    """Give the terminal the size that a message has: two numbers."""
    columns, _, rows = message.decode("ascii", "replace").partition(" ")
    if not (columns.isdecimal() and rows.isdecimal()):
        raise _LeftError
    try:
        terminal.resize(int(columns), int(rows))
    except MusterError as error:
        return _refused(error)
    return _done(None)


def _done(value: object) -> bytes:
    return pickle.dumps((True, value))


def _refused(error: MusterError) -> bytes:
    """Return an error as it is sent: by its class and what it holds, since not every class is made of its text."""
    return pickle.dumps((False, (type(error), error.args, vars(error))))


def _received(connection: socket.socket) -> bytes | None:
    """Raises _LeftError."""
    try:
        return receive(connection, _MOST_WORD_BYTES)
    except (OSError, MalformedError) as error:
        raise _LeftError from error


def _send(connection: socket.socket, message: bytes, descriptor: int | None = None) -> None:
    """Raises _LeftError."""
    try:
        send(connection, message, descriptor)
    except OSError as error:
        raise _LeftError from error


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
