"""The caller of a request: its token or its connection, and limits on failed sign-ins and on one user's requests."""

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, Request, WebSocket
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from muster.core.model.token import Token
from muster.service.identity.tokens import NoTokenError
from muster.service.local_backend import LocalBackend
from muster.service.service import Service
from muster.web.problems import TooManyError
from muster.web.unix_connections import connection_secret

MAX_FAILURES = 10
WINDOW_S = 60.0
_MAX_ADDRESSES = 10_000
_bearer = HTTPBearer(auto_error=False, description="A token made by `muster token create`.")


class FailureLimit:
    """A count of the failed sign-ins of the last minute by address; forgets the oldest of very many addresses.

    Only failures are slowed down: many users may share an address, and a token cannot be guessed.
    """

    def __init__(self, max_failures: int = MAX_FAILURES) -> None:
        self._max_failures = max_failures
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = threading.Lock()

    def record_failure(self, address: str) -> None:
        """Count a failure. Raises TooManyError where the address has had too many."""
        with self._lock:
            recent = self._recent(address)
            if recent is not None and len(recent) >= self._max_failures:
                raise TooManyError(f"{self._max_failures} failed sign-ins in a minute; try again in a minute")
            self._failures.setdefault(address, deque(maxlen=self._max_failures)).append(time.monotonic())
            self._failures.move_to_end(address)
            while len(self._failures) > _MAX_ADDRESSES:
                self._failures.popitem(last=False)

    def _recent(self, address: str) -> deque[float] | None:
        recent = self._failures.get(address)
        while recent and recent[0] < time.monotonic() - WINDOW_S:
            recent.popleft()
        return recent


class RequestLimit:
    """A bucket of requests for each user, which fills up within a minute."""

    def __init__(self, per_minute: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        # What is left of each user's requests, and when that was so.
        self._left: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, user: str) -> None:
        """Count a request of the user. Raises TooManyError where they have made too many."""
        if self._per_minute is None:
            return
        now, per_s = self._clock(), self._per_minute / 60
        with self._lock:
            left, at = self._left.get(user, (float(self._per_minute), now))
            left = min(float(self._per_minute), left + (now - at) * per_s)
            if left >= 1:
                self._left[user] = left - 1, now
                return
        raise TooManyError(
            f"{self._per_minute} requests of yours in a minute; send fewer", math.ceil((1 - left) / per_s)
        )


def service_of(connection: HTTPConnection) -> Service:
    service: Service = connection.app.state.service
    return service


Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def caller(request: Request, credentials: Credentials) -> Token:
    """Return the request's token. Raises NoTokenError and TooManyError."""
    return caller_with(request, None if credentials is None else credentials.credentials)


def caller_with(connection: HTTPConnection, shown: str | None) -> Token:
    """Return the token whose secret was shown.

    At the control node's own socket it is the user of the connection, whatever was shown. Raises NoTokenError and
    TooManyError.
    """
    token = _found(connection, shown)
    connection.state.caller = token
    check_requests(connection, token)
    return token


def _found(connection: HTTPConnection, shown: str | None) -> Token:
    """Raises NoTokenError and TooManyError."""
    secret = connection_secret(connection)
    if secret is not None:
        return service_of(connection).unix_callers.of_secret(secret)
    if shown is None:
        raise NoTokenError("there is no token; send one as a bearer token in the header Authorization")
    limit: FailureLimit = connection.app.state.failures
    try:
        return service_of(connection).tokens.of_secret(shown)
    except NoTokenError:
        limit.record_failure(connection.client.host if connection.client else "")
        raise


def websocket_caller(websocket: WebSocket) -> Token:
    """Return the token of a WebSocket of the API. Raises NoTokenError and TooManyError."""
    scheme, _, shown = websocket.headers.get("authorization", "").partition(" ")
    return caller_with(websocket, shown.strip() if scheme.lower() == "bearer" else None)


def check_requests(request: HTTPConnection, token: Token) -> None:
    """Count the user's request. Raises TooManyError."""
    limit: RequestLimit = request.app.state.requests
    limit.take(token.user)


def backend(request: Request, token: Annotated[Token, Depends(caller)]) -> LocalBackend:
    return service_of(request).backend(token)


Backend = Annotated[LocalBackend, Depends(backend)]
