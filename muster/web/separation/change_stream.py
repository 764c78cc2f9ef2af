"""The broker's stream of changes: of the sessions that those may see who have shown a secret.

The server says `show` with a secret, and gets the number of the last change before; each later one that the secret lets
its holder see follows. It says `hide` once nobody reads with that secret any more. Whether a secret still holds is
looked up for each batch of changes. A change is sent once, however many may see it.
"""

import queue
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from muster.core.model.token import Token
from muster.core.values.errors import MusterError, StoreUnavailableError
from muster.service.identity.tokens import NoTokenError
from muster.service.sessions.live import POLL_S, LiveChange, LiveChanges
from muster.web.problems import TooManyError
from muster.web.separation.answers import LeftError, done, received, refused, send_or_leave, shut
from muster.web.separation.operations import Credential, Request, parse_request
from muster.web.separation.wire import MalformedError

# More than the server's event streams and opened apps together.
MOST_SHOWN = 2500
# Of batches, each of some hundreds of changes at the most, and of the server's words.
_MOST_WAITING = 4000
_MOST_WORD_BYTES = 4096


class ChangeStream:
    """The stream of one connection. `token_of` raises NoTokenError for a secret that does not hold."""

    def __init__(self, connection: socket.socket, live: LiveChanges, token_of: Callable[[Credential], Token]) -> None:
        self._connection = connection
        self._live = live
        self._token_of = token_of
        # In the order in which they came, so that a secret's first change is the one after the number it got.
        self._waiting: queue.Queue[Sequence[LiveChange] | Request | None] = queue.Queue(_MOST_WAITING)
        self._left = threading.Event()
        # By the owner whose sessions they let their holders see; None: everybody's.
        self._shown: dict[str | None, set[Credential]] = {}
        self._last = 0

    def serve(self) -> None:
        """Serve until the server closes its end. Raises LeftError."""
        self._last = self._live.add(self._put, None)
        try:
            threading.Thread(target=self._read, name="broker-changes", daemon=True).start()
            send_or_leave(self._connection, done(None))
            while not self._left.is_set() and (item := self._waiting.get()) is not None:
                if isinstance(item, Request):
                    self._obey(item)
                else:
                    self._pass_on(item)
        finally:
            self._live.remove(self._put)
            shut(self._connection)

    def _put(self, item: Sequence[LiveChange] | Request) -> None:
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            # It reads nothing: who waits for it would keep all changes for it.
            shut(self._connection)

    def _read(self) -> None:
        try:
            while (message := received(self._connection, _MOST_WORD_BYTES)) is not None:
                self._put(parse_request(message))
        except (LeftError, MalformedError):
            shut(self._connection)
        finally:
            self._left.set()
            # It may wait for the next item.
            with suppress(queue.Full):
                self._waiting.put_nowait(None)

    def _obey(self, word: Request) -> None:
        """Raises LeftError."""
        if word.credential is None:
            raise LeftError
        match word.operation:
            case "show":
                self._show(word.credential)
            case "hide":
                for credentials in self._shown.values():
                    credentials.discard(word.credential)
            case _:
                raise LeftError

    def _show(self, credential: Credential) -> None:
        """Raises LeftError."""
        try:
            owner = self._token_of(credential).owner_filter
            if sum(map(len, self._shown.values())) >= MOST_SHOWN:
                raise TooManyError(f"{MOST_SHOWN} tokens and sign-ins read changes; try again later")
        except MusterError as error:
            answer = refused(error)
        else:
            self._shown.setdefault(owner, set()).add(credential)
            answer = done(self._last)
        send_or_leave(self._connection, answer)

    def _pass_on(self, changes: Sequence[LiveChange]) -> None:
        """Raises LeftError."""
        self._last = changes[-1].change.id
        while True:
            try:
                seen = self._seen(changes)
                break
            except StoreUnavailableError:
                # Nothing is passed on unchecked.
                if self._left.wait(POLL_S):
                    raise LeftError from None
        if seen:
            send_or_leave(self._connection, done(seen))

    def _seen(self, changes: Sequence[LiveChange]) -> Sequence[LiveChange]:
        """Return what the server may pass on to anybody. Raises StoreUnavailableError."""
        if self._is_shown_for(None):
            return changes
        owners = {owner for owner in {live.session.owner for live in changes} if self._is_shown_for(owner)}
        return [live.as_owner_sees() for live in changes if live.session.owner in owners]

    def _is_shown_for(self, owner: str | None) -> bool:
        """Return whether a secret still shows this owner's sessions; forget those that do not."""
        credentials = self._shown.get(owner, set())
        while credentials:
            credential = next(iter(credentials))
            if self._shows(credential, owner):
                return True
            credentials.discard(credential)
        self._shown.pop(owner, None)
        return False

    def _shows(self, credential: Credential, owner: str | None) -> bool:
        try:
            # Who was an administrator may be none any more.
            return self._token_of(credential).owner_filter == owner
        except NoTokenError:
            return False
