"""The service layer as the web server has it: each call is a request to the broker, which holds what it is about."""

import logging
import os
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from muster.core.model.apps import App
from muster.core.model.session import Session
from muster.core.model.token import Token
from muster.core.values.errors import MusterError
from muster.service.folders.files import FilePlace, OpenedFile
from muster.service.folders.views import FolderRemovedView
from muster.service.identity.oidc import Begun, SignedIn
from muster.service.local_backend import LocalBackend
from muster.service.metrics import Measures
from muster.service.reach.logs import LogRequest
from muster.service.reach.terminal import TerminalEnd
from muster.service.service import Service
from muster.service.sessions.live import ChangeHandler, LiveChange, seen_changes
from muster.service.sessions.views import SessionView
from muster.service.usage.views import CurrentUsagesView
from muster.service.usage.watched import SessionUsage
from muster.web.separation.line import Line, NoBrokerError, asked, value_of
from muster.web.separation.operations import EXIT_CODE, OPERATIONS, Credential, KnownToken, known_token, request_bytes
from muster.web.separation.wire import MOST_PIECE_BYTES, receive, send

log = logging.getLogger("muster.web")


def brokered_service(line: Line) -> Service:
    """Return a service layer that is all requests to the broker, as far as the web server uses one."""
    return cast("Service", _BrokeredService(line))


class _Methods:
    """The methods of one face of OPERATIONS."""

    def __init__(self, line: Line, face: str, credential: Credential | None) -> None:
        self._line = line
        self._face = face
        self._credential = credential

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - each operation's own
        operation = f"{self._face}.{name}"
        if operation not in OPERATIONS:
            raise AttributeError(f"the web server cannot request {operation}; see muster/web/separation/operations.py")

        def request(*arguments: object, **named: object) -> Any:  # noqa: ANN401 - each operation's own
            return self._line.request(operation, self._credential, arguments, **named)

        return request


class _BrokeredService:
    """The brokered `Service`."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._requests = _Methods(line, "server", None)
        self.settings = self._requests.server_settings()
        self.tokens = _BrokeredTokens(line)
        self.oidc = _BrokeredOidc(line)
        self.unix_callers = _BrokeredUnixCallers(line)
        self.check_database = self._requests.check_database
        self.heartbeat = self._requests.heartbeat

    def backend(self, token: Token) -> LocalBackend:
        return cast("LocalBackend", _BrokeredBackend(self._line, _known(token)))

    def live_changes(self) -> "_BrokeredChanges":
        return _BrokeredChanges(self._line)

    def usage_cache(self) -> "_BrokeredUsage":
        return _BrokeredUsage(self._line)

    def meter(self) -> "_BrokeredMeter":
        return _BrokeredMeter(self._line)

    def audit_log(self) -> "_BrokeredAudit":
        return _BrokeredAudit(self._line)


class _BrokeredTokens:
    """The brokered `Tokens`. A found token remembers the secret that was shown for it."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def of_secret(self, secret: str) -> KnownToken:
        return self._found("token", secret)

    def signed_in(self, secret: str) -> KnownToken:
        return self._found("sign-in", secret)

    def sign_in(self, token: KnownToken) -> tuple[str, float]:
        signed: tuple[str, float] = self._line.request("caller.sign_in", token.credential)
        return signed

    def sign_out(self, secret: str) -> None:
        self._line.request("server.sign_out", None, [secret])

    def _found(self, kind: Literal["token", "sign-in"], secret: str) -> KnownToken:
        return _found(self._line, Credential(kind=kind, secret=secret))


class _BrokeredOidc:
    """The brokered `OidcSignIns`. Who has signed in is known by the secret of their sign-in."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def begin(self, return_to: str) -> Begun:
        begun: Begun = self._line.request("server.begin_oidc", None, [return_to])
        return begun

    def finish(self, sealed: str, state: str, code: str, issuer: str | None) -> SignedIn:
        signed: SignedIn = self._line.request("server.finish_oidc", None, [sealed, state, code, issuer])
        return signed


class _BrokeredUnixCallers:
    """The brokered `UnixCallers`."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def of_secret(self, secret: str) -> KnownToken:
        return _found(self._line, Credential(kind="connection", secret=secret))


class _BrokeredBackend(_Methods):
    """The brokered `LocalBackend`."""

    def __init__(self, line: Line, token: KnownToken) -> None:
        super().__init__(line, "backend", token.credential)
        self.token = token
        self.user = token.user
        self.folders = _BrokeredFolders(line, "folders", token.credential)
        self.images = _Methods(line, "images", token.credential)
        self.secrets = _Methods(line, "secrets", token.credential)
        self.reservations = _Methods(line, "reservations", token.credential)
        self.limits = _Methods(line, "limits", token.credential)
        self.weights = _Methods(line, "weights", token.credential)
        self.tokens = _Methods(line, "tokens", token.credential)
        self.resources = _Methods(line, "resources", token.credential)
        self._requests = _Methods(line, "caller", token.credential)

    def session_with_shares(self, session: Session) -> SessionView:
        view: SessionView = self._requests.session_with_shares(session.id)
        return view

    def still_runs(self, session: Session) -> bool:
        runs: bool = self._requests.still_runs(session.id, session.generation)
        return runs

    def usage_samples(self, references: Sequence[str], interval_s: float, *, once: bool) -> Iterator[CurrentUsagesView]:
        """Yield one sample: the server requests no more."""
        if not once:
            raise ValueError("the broker gives one sample")
        yield self._requests.usage_now(references, interval_s)

    @contextmanager
    def log(self, reference: str, kernel: str | None, request: LogRequest) -> "Iterator[_BrokeredLog]":
        connection, _, _ = self._line.open("open.log", self._credential, [reference, kernel, request])
        with connection:
            yield _BrokeredLog(connection)

    def open_terminal(self, reference: str, kernel: str | None) -> "_BrokeredTerminal":
        connection, session, master = self._line.open("open.terminal", self._credential, [reference, kernel])
        if master is None:
            connection.close()
            raise NoBrokerError
        return _BrokeredTerminal(session, master, connection)

    def open_program(
        self, reference: str, kernel: str | None, command: list[str], *, terminal: bool
    ) -> "_BrokeredProgram":
        arguments = [reference, kernel, command]
        connection, session, program = self._line.open("open.program", self._credential, arguments, terminal=terminal)
        if program is None:
            connection.close()
            raise NoBrokerError
        return _BrokeredProgram(session, connection, socket.socket(fileno=program))

    def open_app_tunnel(self, session: Session, app: App) -> "_BrokeredTunnel":
        return _BrokeredTunnel(*self._line.open("open.app", self._credential, [session.id, app.name])[:2])


class _BrokeredFolders(_Methods):
    """The brokered `OwnedFolders`."""

    def remove(self, name: str, owner: str | None, _on_removed: object) -> FolderRemovedView:
        removed: FolderRemovedView = self._line.request("caller.remove_folder", self._credential, [name, owner])
        return removed

    @contextmanager
    def open_file(self, place: FilePlace, most_bytes: int | None = None) -> Iterator[OpenedFile]:
        connection, file, _ = self._line.open("open.file", self._credential, [place, most_bytes])
        with connection:
            yield OpenedFile(file, iter(_BrokeredPieces(connection)))

    @contextmanager
    def upload(self, place: FilePlace, size: int, *, replaces: bool = False) -> "Iterator[_BrokeredUpload]":
        connection, _, _ = self._line.open("open.upload", self._credential, [place, size], replaces=replaces)
        with connection:
            yield _BrokeredUpload(connection)


class _BrokeredUpload:
    """The brokered `Upload`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, piece: bytes) -> None:
        view = memoryview(piece)
        while view:
            asked(self._connection, bytes(view[:MOST_PIECE_BYTES]))
            view = view[MOST_PIECE_BYTES:]

    def finish(self) -> None:
        asked(self._connection, b"")


class _BrokeredPieces:
    """The pieces of a file. Reading raises NoBrokerError where they break off, and the broker's error."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __iter__(self) -> Iterator[bytes]:
        while True:
            try:
                answer = receive(self._connection)
            except OSError as error:
                raise NoBrokerError from error
            if answer is None:
                raise NoBrokerError
            piece = value_of(answer)
            if piece is None:
                return
            yield piece


class _BrokeredLog:
    """The pieces of a log, until it ends or any thread closes it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def __iter__(self) -> Iterator[bytes]:
        while (answer := self._next()) is not None and (piece := value_of(answer)) is not None:
            yield piece

    def close(self) -> None:
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def _next(self) -> bytes | None:
        try:
            return receive(self._connection)
        except OSError:
            return None


class _BrokeredTerminal(TerminalEnd):
    """A terminal whose program is the broker's: what is typed and shown goes by its file, the rest by the broker."""

    def __init__(self, session: Session, master: int, connection: socket.socket) -> None:
        super().__init__(session, master)
        self._connection = connection

    def resize(self, columns: int, rows: int) -> None:
        """Raises BadInputError and NoBrokerError."""
        asked(self._connection, f"{columns} {rows}".encode())

    def end(self) -> None:
        self.close()
        self._connection.close()


class _BrokeredProgram:
    """The brokered `Program`."""

    def __init__(self, session: Session, broker: socket.socket, connection: socket.socket) -> None:
        self.session = session
        self.connection = connection
        self._broker = broker

    def resize(self, columns: int, rows: int) -> None:
        """Raises MusterError."""
        asked(self._broker, f"{columns} {rows}".encode())

    def exit_code(self) -> int:
        """Raises MusterError."""
        return int(asked(self._broker, EXIT_CODE))

    def close(self) -> None:
        self.connection.close()
        self._broker.close()


class _BrokeredTunnel:
    """The brokered `AppTunnel`, whose socket the broker has given to this process."""

    def __init__(self, connection: socket.socket, opened: tuple[Session, App, str, Path]) -> None:
        self.session, self.app, self.token, self.socket = opened
        self._connection = connection

    def is_open(self) -> bool:
        try:
            return bool(asked(self._connection, b"?"))
        except NoBrokerError:
            return False

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True, slots=True)
class _Joining:
    """A handler whose credential was shown to the broker, which answers with a number."""

    handler: ChangeHandler
    token: KnownToken
    number: "Future[int]" = field(default_factory=Future)


class _BrokeredChanges:
    """The brokered `LiveChanges`: there is one stream from the broker while anybody reads changes.

    Each handler's credential is shown there, and the broker sends what one of them may see.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._lock = threading.Lock()
        self._handlers: dict[ChangeHandler, KnownToken] = {}
        # The broker answers in the order in which credentials were shown.
        self._joining: deque[_Joining] = deque()
        self._shown: Counter[Credential] = Counter()
        self._connection: socket.socket | None = None

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def add(self, handler: ChangeHandler, token: Token) -> int:
        """Raises NoTokenError, NoBrokerError and StoreUnavailableError."""
        joining = _Joining(handler, _known(token))
        with self._lock:
            if self._connection is None:
                connection, _, _ = self._line.open("open.changes", joining.token.credential)
                self._connection = connection
                threading.Thread(target=self._read, args=(connection,), name="live", daemon=True).start()
            self._joining.append(joining)
            self._shown[joining.token.credential] += 1
            # Where the broker has ended it, the reader says so to all who wait for an answer.
            self._say("show", joining.token.credential)
        return joining.number.result()

    def remove(self, handler: ChangeHandler) -> None:
        with self._lock:
            token = self._handlers.pop(handler, None)
            if token is not None:
                self._hide(token.credential)

    def after(self, number: int, until: int, token: Token) -> Sequence[LiveChange]:
        credential = _known(token).credential
        missed: Sequence[LiveChange] = self._line.request("caller.changes_after", credential, [number, until])
        return missed

    def _hide(self, credential: Credential) -> None:
        """Take a credential back unless somebody else reads with it; end the stream when nobody reads."""
        self._shown[credential] -= 1
        if self._shown[credential]:
            return
        del self._shown[credential]
        self._say("hide", credential)
        if not self._shown and self._connection is not None:
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection = None

    def _say(self, word: str, credential: Credential) -> None:
        if self._connection is not None:
            with suppress(OSError):
                send(self._connection, request_bytes(word, {}, credential))

    def _read(self, connection: socket.socket) -> None:
        with connection:
            with suppress(OSError):
                while (answer := receive(connection)) is not None:
                    self._take(connection, answer)
            with self._lock:
                if self._connection is not connection:
                    return
                self._connection = None
                for joining in self._joining:
                    joining.number.set_exception(NoBrokerError())
                self._joining.clear()
        # Nobody could tell what they missed.
        log.error("the broker has ended the stream of changes")
        os.kill(os.getpid(), signal.SIGTERM)

    def _take(self, connection: socket.socket, answer: bytes) -> None:
        """Take the number or the error that answers a shown credential, or the next changes."""
        value: int | MusterError | Sequence[LiveChange]
        try:
            value = value_of(answer)
        except MusterError as error:
            value = error
        with self._lock:
            if self._connection is not connection:
                return
            if isinstance(value, int):
                joining = self._joining.popleft()
                self._handlers[joining.handler] = joining.token
                joining.number.set_result(value)
            elif isinstance(value, MusterError):
                joining = self._joining.popleft()
                self._hide(joining.token.credential)
                joining.number.set_exception(value)
            else:
                for handler, token in self._handlers.items():
                    if seen := seen_changes(value, token):
                        handler(seen)


class _BrokeredUsage:
    """The brokered `UsageCache`."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def of(self, session: Session, token: Token) -> SessionUsage:
        credential = _known(token).credential
        usage: SessionUsage = self._line.request("caller.session_usage", credential, [session.id])
        return usage

    def close(self) -> None:
        """Leave it to the broker."""


class _BrokeredMeter:
    """The brokered `Meter`."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def measure(self, token: Token | None) -> Measures:
        if token is None:
            measures: Measures = self._line.request("server.measure", None)
        else:
            measures = self._line.request("caller.measure", _known(token).credential)
        return measures


class _BrokeredAudit:
    """The brokered `AuditLog`: the broker writes it."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def write(self, record: Mapping[str, Any]) -> None:
        told = {name: value for name, value in record.items() if name != "source"}
        try:
            self._line.request("server.note", None, [told])
        except NoBrokerError as error:
            log.error("%s; the audit log lacks %s", error, told)  # noqa: TRY400 - one line


def _found(line: Line, credential: Credential) -> KnownToken:
    """Return the token that was found by a credential, with it. Raises NoTokenError."""
    return known_token(line.request("caller.token", credential), credential)


def _known(token: Token) -> KnownToken:
    if not isinstance(token, KnownToken):
        raise TypeError("the token was not found by the broker")
    return token
