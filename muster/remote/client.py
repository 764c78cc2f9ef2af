"""The API of a `muster web` elsewhere, asked over HTTP: answers as data, problems as the errors that they were."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from muster.core.values.errors import (
    AgentUnreachableError,
    AmbiguousNameError,
    BadInputError,
    FieldError,
    MusterError,
    NameTakenError,
    NotFoundError,
    NotPossibleInStateError,
    SettingsError,
    SpecError,
    StoreUnavailableError,
)
from muster.service.identity.tokens import NoTokenError, ScopeError
from muster.service.wire import MEDIA_TYPE

_PATIENCE = httpx.Timeout(60.0, connect=10.0)
_LONG_PATIENCE = httpx.Timeout(600.0, connect=10.0)
_KINDS: Mapping[str, type[MusterError]] = {
    "not-found": NotFoundError,
    "ambiguous-name": AmbiguousNameError,
    "name-taken": NameTakenError,
    "settings": SettingsError,
    "bad-input": BadInputError,
    "too-large": BadInputError,
    "not-possible-in-state": NotPossibleInStateError,
    "no-token": NoTokenError,
    "scope": ScopeError,
    "store-unavailable": StoreUnavailableError,
    "agent-unreachable": AgentUnreachableError,
}


class ServerError(MusterError):
    """The server cannot be reached, or does not answer as one of ours."""


class Client:
    """`url` is the server's, such as https://muster.example.org; its path, if it has one, stands before ours."""

    def __init__(self, url: str, token: str, transport: httpx.BaseTransport | None = None) -> None:
        """Raises BadInputError for what is no URL, or a token that could not be sent."""
        try:
            parsed = httpx.URL(url)
        except (httpx.InvalidURL, TypeError):
            parsed = httpx.URL("")
        if parsed.scheme not in {"http", "https"} or not parsed.host:
            raise BadInputError(f"--server: {url!r} is no URL; write one such as https://muster.example.org:8443")
        if not token.isascii() or not token.isprintable() or not token:
            raise BadInputError("--token-file: it holds no token; write what `muster token create` printed into it")
        self._url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=f"{self._url}/api/v1/",
            headers={"Authorization": f"Bearer {token}"},
            timeout=_PATIENCE,
            transport=transport,
            # The system's certificate authorities, so that a site's own is known too.
            verify=ssl.create_default_context(),
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, parameters: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401 - JSON
        """Raises the error that the server tells of, and ServerError."""
        return self._asked("GET", path, params=_given(parameters))

    def post(self, path: str, body: object, parameters: Mapping[str, Any] | None = None, **headers: str) -> Any:  # noqa: ANN401
        """Raises as `get`."""
        return self._asked("POST", path, json=body, params=_given(parameters), headers=headers)

    def put(self, path: str, body: object) -> Any:  # noqa: ANN401
        """Raises as `get`."""
        return self._asked("PUT", path, json=body)

    def delete(self, path: str) -> Any:  # noqa: ANN401
        """Raises as `get`."""
        return self._asked("DELETE", path)

    def patiently(
        self, method: str, path: str, body: object = None, parameters: Mapping[str, Any] | None = None
    ) -> Any:  # noqa: ANN401
        """For what the server asks its agents: one that does not answer takes minutes. Raises as `get`."""
        given = {} if body is None else {"json": body}
        return self._asked(method, path, params=_given(parameters), timeout=_LONG_PATIENCE, **given)

    @contextmanager
    def stream(self, path: str, parameters: Mapping[str, Any]) -> Iterator[Iterator[bytes]]:
        """What comes, in pieces, however long it takes. Raises as `get`."""
        patience = httpx.Timeout(None, connect=10.0)
        with (
            self._reaching(),
            self._http.stream("GET", path, params=_given(parameters), timeout=patience) as response,
        ):
            if response.is_error:
                response.read()
                raise _error(response)
            yield response.iter_bytes()

    def _asked(self, method: str, path: str, **request: Any) -> Any:  # noqa: ANN401
        headers = {"Accept": f"{MEDIA_TYPE}, application/json", **request.pop("headers", {})}
        with self._reaching():
            response = self._http.request(method, path, headers=headers, **request)
        if response.is_error:
            raise _error(response)
        try:
            return response.json()
        except ValueError:
            raise ServerError(f"--server: {self._url} is no server of Muster: its answer is no JSON") from None

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.TransportError as error:
            cause = " ".join(str(error).split()) or type(error).__name__
            raise ServerError(f"--server: {self._url} cannot be reached: {cause}") from None


def _given(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (parameters or {}).items() if value is not None}


def _error(response: httpx.Response) -> MusterError:
    try:
        told = response.json()
        kind = str(told["type"]).removeprefix("urn:muster:")
        detail = str(told["detail"])
        errors = [FieldError(**error) for error in told["errors"]]
    except (ValueError, KeyError, TypeError):
        return ServerError(f"--server: {response.url.host} answered {response.status_code}: is it a server of Muster?")
    if kind == "spec" and errors:
        return SpecError(errors)
    return _KINDS.get(kind, MusterError)(detail)
