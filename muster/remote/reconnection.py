"""Requests of a client that waits: they go on when the server was away for a while, as when it restarts."""

import time
from typing import TypeVar

from muster.core.values.errors import StoreUnavailableError
from muster.remote.client import Client, ServerAwayError
from muster.service.view import View

Answer = TypeVar("Answer", bound=View)
AWAY_S = 300.0
_RETRY_S = 1.0


class Reconnection:
    """A client's requests that may be repeated, since they change nothing.

    While the server cannot be reached, or its database is away, each is sent again every second, until none has been
    answered for `away_s`.
    """

    def __init__(self, client: Client, away_s: float = AWAY_S) -> None:
        self._client = client
        self._away_s = away_s

    def get(self, kind: type[Answer], path: str, deadline: float | None = None) -> Answer:
        """Return the answer. Raises TimeoutError after the deadline (`time.monotonic`), and as `Client.get`."""
        give_up_at = time.monotonic() + self._away_s
        while True:
            try:
                return self._client.get(kind, path)
            except (ServerAwayError, StoreUnavailableError):
                now = time.monotonic()
                if now > give_up_at:
                    raise
                if deadline is not None and now > deadline:
                    raise TimeoutError from None
            time.sleep(_RETRY_S)
