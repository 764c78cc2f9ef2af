"""The service layer as the web server has it: each call is a request to the broker, which holds what it is about."""

import logging
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, cast

from muster.core.model.apps import App
from muster.core.model.session import Session
from muster.core.model.token import Token
from muster.service.folders.files import FilePlace, OpenedFile
from muster.service.folders.views import FolderRemovedView
from muster.service.identity.oidc import Begun, SignedIn
from muster.service.local_backend import LocalBackend
from muster.service.metrics import Measures
from muster.service.reach.logs import LogRequest
from muster.service.service import Service
from muster.service.sessions.views import SessionView
from muster.service.usage.views import CurrentUsagesView
from muster.service.usage.watched import SessionUsage
from muster.web.separation.changes import BrokeredChanges
from muster.web.separation.line import Line, NoBrokerError
from muster.web.separation.opened import (
    BrokeredLog,
    BrokeredPieces,
    BrokeredProgram,
    BrokeredTerminal,
    BrokeredTunnel,
    BrokeredUpload,
)
from muster.web.separation.operations import (
    OPERATIONS,
    Credential,
    KnownToken,
    known,
    known_token,
)

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
        return cast("LocalBackend", _BrokeredBackend(self._line, known(token)))

    def live_changes(self) -> BrokeredChanges:
        return BrokeredChanges(self._line)

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
        self.reach = _BrokeredReach(line, "reach", token.credential)
        self.secrets = _Methods(line, "secrets", token.credential)
        self.reservations = _Methods(line, "reservations", token.credential)
        self.limits = _Methods(line, "limits", token.credential)
        self.weights = _Methods(line, "weights", token.credential)
        self.lists = _Methods(line, "lists", token.credential)
        self.presets = _Methods(line, "presets", token.credential)
        self.queue_pages = _Methods(line, "queue_pages", token.credential)
        self.tokens = _Methods(line, "tokens", token.credential)
        self.resources = _Methods(line, "resources", token.credential)
        self._requests = _Methods(line, "caller", token.credential)

    def token_is_valid(self) -> bool:
        """Return whether what was shown gives what it gave. Raises NoTokenError where it gives nothing any more."""
        now: Token = self._requests.token()
        return now.gives_what(self.token)

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


class _BrokeredReach(_Methods):
    """The brokered `OwnedReach`."""

    @contextmanager
    def log(self, reference: str, kernel: str | None, request: LogRequest) -> Iterator[BrokeredLog]:
        connection, _, _ = self._line.open("open.log", self._credential, [reference, kernel, request])
        with connection:
            yield BrokeredLog(connection)

    def open_terminal(self, reference: str, kernel: str | None) -> BrokeredTerminal:
        connection, session, master = self._line.open("open.terminal", self._credential, [reference, kernel])
        if master is None:
            connection.close()
            raise NoBrokerError
        return BrokeredTerminal(session, master, connection)

    def open_program(
        self, reference: str, kernel: str | None, command: list[str], *, terminal: bool
    ) -> BrokeredProgram:
        arguments = [reference, kernel, command]
        connection, session, program = self._line.open("open.program", self._credential, arguments, terminal=terminal)
        if program is None:
            connection.close()
            raise NoBrokerError
        return BrokeredProgram(session, connection, socket.socket(fileno=program))

    def open_app_tunnel(self, session: Session, app: App) -> BrokeredTunnel:
        return BrokeredTunnel(*self._line.open("open.app", self._credential, [session.id, app.name])[:2])


class _BrokeredFolders(_Methods):
    """The brokered `OwnedFolders`."""

    def remove(self, name: str, owner: str | None, _on_removed: object) -> FolderRemovedView:
        removed: FolderRemovedView = self._line.request("caller.remove_folder", self._credential, [name, owner])
        return removed

    @contextmanager
    def open_file(self, place: FilePlace, most_bytes: int | None = None) -> Iterator[OpenedFile]:
        connection, file, _ = self._line.open("open.file", self._credential, [place, most_bytes])
        with connection:
            yield OpenedFile(file, iter(BrokeredPieces(connection)))

    @contextmanager
    def upload(self, place: FilePlace, size: int, *, replaces: bool = False) -> Iterator[BrokeredUpload]:
        connection, _, _ = self._line.open("open.upload", self._credential, [place, size], replaces=replaces)
        with connection:
            yield BrokeredUpload(connection)


class _BrokeredUsage:
    """The brokered `UsageCache`."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def of(self, session: Session, token: Token) -> SessionUsage:
        credential = known(token).credential
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
            measures = self._line.request("caller.measure", known(token).credential)
        return measures


class _BrokeredAudit:
    """The brokered `AuditLog`: the broker writes it."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def write(self, record: Mapping[str, Any]) -> None:
        fields = {name: value for name, value in record.items() if name != "source"}
        try:
            self._line.request("server.note", None, [fields])
        except NoBrokerError as error:
            log.error("%s; the audit log lacks %s", error, fields)  # noqa: TRY400 - one line


def _found(line: Line, credential: Credential) -> KnownToken:
    """Return the token that was found by a credential, with it. Raises NoTokenError."""
    return known_token(line.request("caller.token", credential), credential)
