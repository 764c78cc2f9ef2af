"""The API of a `muster web` over HTTP: answers as views, problems as the errors that they were."""

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from muster.core.values.errors import BadInputError, FieldError, MusterError, NotFoundError, SpecError
from muster.remote.tls_socket import orderly
from muster.remote.unix_transport import UnixTransport, connected
from muster.service.problem_kinds import KINDS
from muster.service.view import View

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

Answer = TypeVar("Answer", bound=View)
# The server words errors for the API's other callers without commands and flags.
_WORDING = {"Prefer": "command-line"}
_PATIENCE = httpx.Timeout(60.0, connect=10.0)
_LONG_PATIENCE = httpx.Timeout(600.0, connect=10.0)
_KEEPALIVE = (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3))
# Too many requests within a minute are over in seconds, too many failed sign-ins are not.
_MAX_WAIT_S = 30
# What a proxy answers while the server behind it is away.
_OF_A_PROXY = frozenset({502, 503, 504})
_CLASSES: Mapping[str, type[MusterError]] = {
    **{kind: cls for cls, kind in KINDS.items() if cls is not SpecError},
    "too-large": BadInputError,
}


class ServerError(MusterError):
    """The server cannot be reached, or does not answer as one of ours."""


class ServerAwayError(ServerError):
    """Nobody answers where the server was, or only what stands before it."""


class OtherVersionError(MusterError):
    """The server's answer lacks what this version's views need: it is of another version of Muster."""


def socket_of(url: str) -> Path | None:
    """Return the path of a URL such as unix:/run/muster-api.sock; None for another URL. Raises BadInputError."""
    scheme, colon, path = url.partition(":")
    if not colon or scheme != "unix":
        return None
    if not path.startswith("/") or "\0" in path:
        raise BadInputError(f"--server: {url!r} names no socket; write one such as unix:/run/muster-api.sock")
    return Path("/" + path.lstrip("/"))


class Client:
    """A client of the server at `url`.

    That is one such as https://muster.example.org, with a token; a path in it comes before ours. Or it is a socket of
    this machine, such as unix:/run/muster-api.sock, where the server knows the Unix user without one.
    """

    def __init__(self, url: str, token: str | None, transport: httpx.BaseTransport | None = None) -> None:
        """Raises BadInputError for what is no URL, or a token that could not be sent."""
        self._url = url.rstrip("/")
        self._socket = path = socket_of(url)
        self._token = token
        if path is not None:
            self._http = httpx.Client(
                base_url="http://localhost/api/v1/",
                headers=_WORDING,
                timeout=_PATIENCE,
                transport=transport or UnixTransport(path),
            )
            return
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, TypeError):
            parsed = httpx.URL("")
        if parsed.scheme not in {"http", "https"} or not parsed.host:
            raise BadInputError(f"--server: {url!r} is no URL; write one such as https://muster.example.org:8443")
        if not token or not token.isascii() or not token.isprintable():
            raise BadInputError("--token-file: it holds no token; write what `muster token create` printed into it")
        self._http = httpx.Client(
            base_url=f"{self._url}/api/v1/",
            headers={"Authorization": f"Bearer {token}", **_WORDING},
            timeout=_PATIENCE,
            transport=transport,
            verify=_trust(parsed.scheme),
        )

    def close(self) -> None:
        self._http.close()

    def get(
        self, kind: type[Answer], path: str, parameters: Mapping[str, Any] | None = None, *, patient: bool = False
    ) -> Answer:
        """Return the answer as a view of that kind. Where the server visits agents, be `patient`: it may take minutes.

        Raises the error that the server answers with, ServerError, and OtherVersionError.
        """
        return self._answer(kind, "GET", path, parameters, patient=patient)

    def post(
        self,
        kind: type[Answer],
        path: str,
        body: object,
        parameters: Mapping[str, Any] | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        patient: bool = False,
    ) -> Answer:
        """Raises as `get`."""
        return self._answer(kind, "POST", path, parameters, patient=patient, json=body, headers=headers)

    def put(self, kind: type[Answer], path: str, body: object) -> Answer:
        """Raises as `get`."""
        return self._answer(kind, "PUT", path, json=body)

    def patch(self, kind: type[Answer], path: str, body: object) -> Answer:
        """Raises as `get`."""
        return self._answer(kind, "PATCH", path, json=body)

    def delete(self, kind: type[Answer], path: str, parameters: Mapping[str, Any] | None = None) -> Answer:
        """Delete patiently: the server may have to visit agents. Raises as `get`."""
        return self._answer(kind, "DELETE", path, parameters, patient=True)

    @contextmanager
    def stream(self, path: str, parameters: Mapping[str, Any]) -> Iterator[Iterator[bytes]]:
        """Open an answer in pieces, which may last for any time. Raises as `get`."""
        patience = httpx.Timeout(None, connect=10.0)
        with (
            self._reaching(),
            self._http.stream("GET", path, params=_given(parameters), timeout=patience) as response,
        ):
            if response.is_error:
                response.read()
                raise _error(response)
            yield response.iter_bytes()

    @contextmanager
    def websocket(self, path: str) -> "Iterator[ClientConnection]":
        """Open a WebSocket of the API, from which may be read as slowly as one likes. Raises ServerError."""
        from websockets.exceptions import WebSocketException  # noqa: PLC0415 - few commands need it
        from websockets.sync.client import connect  # noqa: PLC0415

        connect_s = _PATIENCE.connect
        with self._reaching(), ExitStack() as stack:
            try:
                if self._socket is not None:
                    sock = connected(self._socket, connect_s)
                    # From here on silence is no error.
                    sock.settimeout(None)
                    opening = connect(
                        f"ws://localhost/api/v1/{path}", sock=sock, open_timeout=connect_s, ping_interval=None
                    )
                else:
                    opening = connect(
                        f"ws{self._url.removeprefix('http')}/api/v1/{path}",
                        ssl=orderly(ssl.create_default_context()) if self._url.startswith("https:") else None,
                        additional_headers={"Authorization": f"Bearer {self._token}"},
                        open_timeout=connect_s,
                        ping_interval=None,
                    )
                    _have_watched(opening.socket)
                websocket = stack.enter_context(opening)
            except (OSError, WebSocketException) as error:
                raise httpx.ConnectError(str(error)) from None
            ended = stack.pop_all()
        with ended:
            yield websocket

    def _answer(
        self,
        kind: type[Answer],
        method: str,
        path: str,
        parameters: Mapping[str, Any] | None = None,
        *,
        patient: bool = False,
        **request: Any,  # noqa: ANN401 - as httpx has it
    ) -> Answer:
        content = self._json(
            method, path, params=_given(parameters), timeout=_LONG_PATIENCE if patient else _PATIENCE, **request
        )
        try:
            return kind.model_validate(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise OtherVersionError(
                f"--server: its answer is not understood ({where}: {first['msg']}); {self._versions()}"
            ) from None

    def _json(self, method: str, path: str, **request: Any) -> Any:  # noqa: ANN401
        patience_s = _MAX_WAIT_S
        while True:
            with self._reaching():
                response = self._http.request(method, path, **request)
            wait_s = _seconds_to_wait(response)
            if not 0 < wait_s <= patience_s:
                break
            patience_s -= wait_s
            time.sleep(wait_s)
        if response.is_error:
            raise _error(response)
        try:
            return response.json()
        except ValueError:
            raise ServerError(f"{self._title} is no server of Muster: its answer is no JSON") from None

    def _versions(self) -> str:
        """Return which versions the two sides have, as far as the server says its own, and the remedy."""
        content = self._json("GET", "version", timeout=_PATIENCE)
        there = content.get("muster") if isinstance(content, dict) else None
        known = f"the server runs Muster {there}, this is {version('muster')}; " if isinstance(there, str) else ""
        return f"{known}use the server's version of Muster"

    @property
    def _title(self) -> str:
        """Return what to call the server in messages: nobody need have named the socket."""
        return f"--server: {self._url}" if self._socket is None else f"the control node's socket {self._socket}"

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            cause = " ".join(str(error).split()) or type(error).__name__
            raise ServerAwayError(f"{self._title} cannot be reached: {cause}") from None


def _have_watched(connection: socket.socket) -> None:
    """Have the system break a connection whose other side is gone: pings would have to be answered in time."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        # Not every system has each of them.
        if (option := getattr(socket, name, None)) is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def path_part(name: str) -> str:
    """Return a name as part of a path. Raises BadInputError for what would be none."""
    if name in {"", ".", ".."}:
        raise BadInputError(f"NAME: {name!r} is no name; use letters, digits, dots, dashes and underscores")
    return quote(name, safe="")


def _trust(scheme: str) -> ssl.SSLContext:
    """Return the system's authorities, so that a site's own is known too. Without TLS none are read: it takes 17 ms."""
    return ssl.create_default_context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def session_path(reference: str) -> str:
    """Raises NotFoundError for what would be no part of a path."""
    if reference in {"", ".", ".."}:
        raise NotFoundError(f"there is no session {reference!r}; see `muster ls --all`")
    return f"sessions/{quote(reference, safe='')}"


def _seconds_to_wait(response: httpx.Response) -> int:
    """Return after how many seconds the server takes the request; 0 where it was no matter of sending too many."""
    after = response.headers.get("retry-after", "")
    return int(after) if response.status_code == 429 and after.isdecimal() and len(after) < 4 else 0


def _given(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (parameters or {}).items() if value is not None}


def _error(response: httpx.Response) -> MusterError:
    try:
        found = error_of(response.json())
    except ValueError:
        found = None
    if found is None:
        kind = ServerAwayError if response.status_code in _OF_A_PROXY else ServerError
        return kind(f"--server: {response.url.host} answered {response.status_code}: is it a server of Muster?")
    return found


def error_of(problem: Any) -> MusterError | None:  # noqa: ANN401 - any JSON
    """Return the error that a problem of the API was; None for what is no problem."""
    try:
        kind = str(problem["type"]).removeprefix("urn:muster:")
        detail = str(problem["detail"])
        errors = [FieldError(**error) for error in problem["errors"]]
    except (KeyError, TypeError):
        return None
    if kind == KINDS[SpecError] and errors:
        return SpecError(errors)
    return _CLASSES.get(kind, MusterError)(detail)
