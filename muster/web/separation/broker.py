"""The broker: it has the database, the keys and root's rights, and does for the web server what callers may do.

Each request carries what its caller has shown: the secret of a token, or of a browser's sign-in, or the one that the
broker gave a Unix user's connection. The broker looks that up itself and calls what the command line calls, with the
same checks, so the server can do no more than its callers.
"""

import logging
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Any, Protocol

from muster.core.model.token import Token
from muster.core.values.errors import BadInputError, MusterError
from muster.service.folders.files import OpenedFile, Upload
from muster.service.identity.tokens import NoTokenError
from muster.service.local_backend import LocalBackend
from muster.service.reach.programs import Program
from muster.service.reach.terminal import Terminal
from muster.service.service import Service
from muster.web.separation.answers import LeftError, done, received, refused, send_or_leave, shut
from muster.web.separation.change_stream import ChangeStream
from muster.web.separation.operations import EXIT_CODE, OPERATIONS, Credential, Request, parse_request
from muster.web.separation.requests import CallerRequests, Readers, ServerRequests
from muster.web.separation.wire import MOST_PIECE_BYTES, MOST_REQUEST_BYTES, MalformedError, receive, send

log = logging.getLogger("muster.broker")
# More than the server's threads, logs, terminals and opened apps together.
MOST_CONNECTIONS = 1500
_MOST_WORD_BYTES = 64
_PIECE_BYTES = 1 << 16
_END_PATIENCE_S = 5.0


class Broker:
    """A broker for one web server. `reader` has the numbers of the user and the group of the server's process."""

    def __init__(self, service: Service, reader: tuple[int, int] | None) -> None:
        self._service = service
        self._readers = Readers(service.live_changes(), service.usage_cache(), service.meter())
        self._server = ServerRequests(service, self._readers)
        self._reader = reader
        self._connections: dict[threading.Thread, socket.socket] = {}

    def serve(self, control: socket.socket) -> None:
        """Serve all connections that come by `control`, until the server closes that."""
        with self._readers.live.running(), closing(self._readers.usage):
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
            shut(connection)
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
            called_on = self._called_on(face, request.credential)
            arguments = operation.decoded(request.arguments)
            if face == "open":
                self._open(connection, name, arguments, called_on)
                return
            answer = done(operation.function(called_on, **arguments))
        except MalformedError as error:
            answer = refused(BadInputError(f"it cannot be passed on: {error}"))
        except MusterError as error:
            answer = refused(error)
        except LeftError as left:
            raise OSError from left
        except Exception:
            # A mistake of ours fails this request, with its traceback in the log, and none of the server's others.
            log.exception("%s failed", request.operation)
            answer = refused(MusterError("it failed; the server's log says why"))
        send(connection, answer)

    def _called_on(self, face: str, credential: Credential | None) -> Any:  # noqa: ANN401 - OPERATIONS' own
        """Raises NoTokenError."""
        if face == "server":
            return self._server
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
        return CallerRequests(self._service, self._token(credential), self._readers)

    def _token(self, credential: Credential) -> Token:
        """Raises NoTokenError."""
        match credential.kind:
            case "token":
                return self._service.tokens.of_secret(credential.secret)
            case "sign-in":
                return self._service.tokens.signed_in(credential.secret)
            case "connection":
                return self._service.unix_callers.of_secret(credential.secret)

    def _open(self, connection: socket.socket, name: str, arguments: dict[str, Any], backend: LocalBackend) -> None:
        """Open what lasts as long as its connection. Raises MusterError before it is open, then LeftError."""
        match name:
            case "changes":
                ChangeStream(connection, self._readers.live, self._token).serve()
            case "app":
                self._serve_app(connection, backend, arguments)
            case "file":
                with backend.folders.open_file(**arguments) as opened:
                    _send_file(connection, opened)
            case "upload":
                with backend.folders.upload(**arguments) as upload:
                    _take_upload(connection, upload)
            case "program":
                with closing(backend.reach.open_program(**arguments)) as program:
                    _serve_program(connection, program)
            case "terminal":
                _serve_terminal(connection, backend.reach.open_terminal(**arguments))
            case _:
                with backend.reach.log(**arguments) as pieces:
                    send_or_leave(connection, done(None))
                    _pass_log(connection, pieces)

    def _serve_app(self, connection: socket.socket, backend: LocalBackend, arguments: dict[str, Any]) -> None:
        """Open a tunnel for the server's own user. Raises MusterError and LeftError."""
        session, app = backend.reach.openable_app(**arguments)
        with closing(backend.reach.open_app_tunnel(session, app)) as way:
            if self._reader is not None:
                way.give_to(*self._reader)
            send_or_leave(connection, done((session, app, way.token, way.socket)))
            while received(connection, _MOST_WORD_BYTES) is not None:
                send_or_leave(connection, done(way.is_open()))


def _serve_terminal(connection: socket.socket, terminal: Terminal) -> None:
    """Hand over a terminal's end, and set its sizes. Raises LeftError."""
    try:
        send_or_leave(connection, done(terminal.session), terminal.fileno())
        while (message := received(connection, _MOST_WORD_BYTES)) is not None:
            send_or_leave(connection, _resized(terminal, message))
    finally:
        terminal.end()


def _send_file(connection: socket.socket, opened: OpenedFile) -> None:
    """Raises LeftError, and AgentUnreachableError where the file breaks off."""
    send_or_leave(connection, done(opened.file))
    for piece in opened.pieces:
        send_or_leave(connection, done(piece))
    send_or_leave(connection, done(None))


def _take_upload(connection: socket.socket, upload: Upload) -> None:
    """Write what comes; an empty piece ends it. Raises LeftError and MusterError."""
    send_or_leave(connection, done(None))
    # Each piece is answered, so that the server hears at once why no more is taken.
    while (piece := received(connection, MOST_PIECE_BYTES)) is not None:
        if piece:
            upload.write(piece)
        else:
            upload.finish()
        send_or_leave(connection, done(None))


def _pass_log(connection: socket.socket, pieces: Iterable[bytes]) -> None:
    """Send the pieces of a log, until it ends or the server closes its end."""

    def watch() -> None:
        with suppress(LeftError):
            received(connection, _MOST_WORD_BYTES)
        if hasattr(pieces, "close"):
            # A generator cannot be closed while a thread is in it: that ends with the next piece.
            with suppress(ValueError, OSError):
                pieces.close()

    threading.Thread(target=watch, name="broker-log", daemon=True).start()
    try:
        for piece in pieces:
            send_or_leave(connection, done(piece))
        send_or_leave(connection, done(None))
    finally:
        shut(connection)


def _serve_program(connection: socket.socket, program: Program) -> None:
    """Pass a program's input and output on, by a connection that the server gets. Raises LeftError."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            send_or_leave(connection, done(program.session), theirs.fileno())
        ways = ((ours, program.connection), (program.connection, ours))
        threads = [threading.Thread(target=_pass_on, args=way, name="broker-program", daemon=True) for way in ways]
        for thread in threads:
            thread.start()
        try:
            while (message := received(connection, _MOST_WORD_BYTES)) is not None:
                answer = done(program.exit_code()) if message == EXIT_CODE else _resized(program, message)
                send_or_leave(connection, answer)
        finally:
            for one in (ours, program.connection):
                shut(one)
            for thread in threads:
                thread.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes, up to its end."""
    with suppress(OSError):
        while piece := source.recv(_PIECE_BYTES):
            target.sendall(piece)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


class _Resizable(Protocol):
    def resize(self, columns: int, rows: int) -> None: ...


def _resized(terminal: _Resizable, message: bytes) -> bytes:
    """Give the terminal the size that a message has: two numbers."""
    columns, _, rows = message.decode("ascii", "replace").partition(" ")
    if not (columns.isdecimal() and rows.isdecimal()):
        raise LeftError
    try:
        terminal.resize(int(columns), int(rows))
    except MusterError as error:
        return refused(error)
    return done(None)
