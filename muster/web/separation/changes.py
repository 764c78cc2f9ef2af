"""The changes of sessions as the web server reads them: one stream from the broker for all who watch."""

import logging
import os
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field

from muster.core.model.token import Token
from muster.core.values.errors import MusterError
from muster.service.sessions.live import ChangeHandler, LiveChange, seen_changes
from muster.web.separation.line import Line, NoBrokerError, value_of
from muster.web.separation.operations import Credential, KnownToken, known, request_bytes
from muster.web.separation.wire import receive, send

log = logging.getLogger("muster.web")


@dataclass(frozen=True, slots=True)
class _Joining:
    """A handler whose credential was shown to the broker, which answers with a number."""

    handler: ChangeHandler
    token: KnownToken
    number: "Future[int]" = field(default_factory=Future)


class BrokeredChanges:
    """The brokered `LiveChanges`: there is one stream from the broker while anybody reads changes.

    Each handler's credential is shown there, and the broker sends what one of them may see.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        self._lock = threading.Lock()
        # For opening the stream alone, which takes as long as the broker likes: the event loop removes handlers.
        self._opening = threading.Lock()
        self._handlers: dict[ChangeHandler, KnownToken] = {}
        # The broker answers in the order in which credentials were shown.
        self._joining: deque[_Joining] = deque()
        self._shown: Counter[Credential] = Counter()
        self._connection: socket.socket | None = None

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def add(self, handler: ChangeHandler, token: Token) -> int:
        """Raises NoTokenError, NoBrokerError and StoreUnavailableError."""
        joining = _Joining(handler, known(token))
        with self._opening:
            while not self._has_joined(joining):
                connection, _, _ = self._line.open("open.changes", joining.token.credential)
                with self._lock:
                    self._connection = connection
                threading.Thread(target=self._read, args=(connection,), name="live", daemon=True).start()
        return joining.number.result()

    def _has_joined(self, joining: _Joining) -> bool:
        """Show a credential in the open stream, and return whether there is one."""
        with self._lock:
            if self._connection is None:
                return False
            self._joining.append(joining)
            self._shown[joining.token.credential] += 1
            # Where the broker has ended it, the reader says so to all who wait for an answer.
            self._say("show", joining.token.credential)
            return True

    def remove(self, handler: ChangeHandler) -> None:
        with self._lock:
            token = self._handlers.pop(handler, None)
            if token is not None:
                self._hide(token.credential)

    def after(self, number: int, until: int, token: Token) -> Sequence[LiveChange]:
        credential = known(token).credential
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
