"""Changes of sessions as they happen, read once for all handlers."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from muster.core.model.session import Session
from muster.core.model.token import Token
from muster.core.values.errors import StoreUnavailableError
from muster.service.sessions.visibility import visible_sessions
from muster.service.trouble import Trouble
from muster.store.sessions.changes import Change
from muster.store.store import Store

log = logging.getLogger("muster.live")
POLL_S = 0.2
_MOST_AT_ONCE = 500


@dataclass(frozen=True, slots=True, eq=False)
class LiveChange:
    """A change and the session as it is since; every handler gets the same one.

    `visible_to_owner` is the session as its owner may see it: its wait names no session of others.
    """

    change: Change
    session: Session
    visible_to_owner: Session

    def as_owner_sees(self) -> Self:
        """Return the change without what the session's owner may not see."""
        return replace(self, session=self.visible_to_owner)


ChangeHandler = Callable[[Sequence[LiveChange]], None]


def seen_changes(changes: Sequence[LiveChange], token: Token | None) -> Sequence[LiveChange]:
    """Return the changes of the sessions that a token may see: the same objects, so that each is rendered once.

    Without a token they are all changes.
    """
    return changes if token is None else [live for live in changes if token.sees(live.session.owner)]


class LiveChanges:
    """The thread that reads changes from the store for any number of handlers. It rests while there is none.

    A database that can notify wakes it; otherwise it reads five times a second.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._handlers: dict[ChangeHandler, Token | None] = {}
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._stopped = threading.Event()
        self._last = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        reader = threading.Thread(target=self._run, name="live", daemon=True)
        with self._store.listen(lambda _message: self._news.set()):
            reader.start()
            try:
                yield
            finally:
                self._stopped.set()
                self._news.set()
                reader.join()

    def add(self, handler: ChangeHandler, token: Token | None) -> int:
        """Call the handler with all later changes that the token may see; return the number of the last one before.

        It is called from another thread. Without a token it gets everybody's.
        """
        with self._lock:
            if not self._handlers:
                self._last = self._store.last_event()
            self._handlers[handler] = token
            self._news.set()
            return self._last

    def remove(self, handler: ChangeHandler) -> None:
        with self._lock:
            self._handlers.pop(handler, None)

    def after(self, number: int, until: int, token: Token) -> Sequence[LiveChange]:
        """Return some hundreds of changes that a token's handler missed: after one number and up to another.

        However many changes of others there were meanwhile, they take no place of these.
        """
        changes = self._store.changes.after(number, _MOST_AT_ONCE, token.owner_filter)
        return seen_changes(self._with_sessions([change for change in changes if change.id <= until]), token)

    def _run(self) -> None:
        trouble = Trouble(log)
        while not self._stopped.is_set():
            with self._lock:
                idle = not self._handlers
            self._news.wait(None if idle else POLL_S)
            self._news.clear()
            try:
                if trouble.is_on:
                    self._go_back_if_after(self._store.last_event())
                while self._read():
                    continue
                trouble.over("news of sessions come again")
            except StoreUnavailableError as error:
                trouble.note(f"news of sessions wait: {error}")
                self._stopped.wait(POLL_S)

    def _go_back_if_after(self, newest: int) -> None:
        """Read the newest changes once more where some that were read are lost, and their numbers others' now.

        So it is where a replica became the primary without the newest commits.
        """
        with self._lock:
            if newest < self._last:
                self._last = max(0, newest - _MOST_AT_ONCE)

    def _read(self) -> bool:
        """Pass on the next changes; return whether there may be more."""
        with self._lock:
            if not self._handlers:
                return False
            last = self._last
        # Without the lock: adding and removing handlers does not wait for the database.
        changes = self._store.changes.after(last, _MOST_AT_ONCE)
        if not changes:
            return False
        found = self._with_sessions(changes)
        with self._lock:
            # The handlers of now may have come after all others had gone, and after these changes.
            news = [live for live in found if live.change.id > self._last]
            self._last = max(self._last, changes[-1].id)
            for handler, token in self._handlers.items():
                if seen := seen_changes(news, token):
                    handler(seen)
        return len(changes) == _MOST_AT_ONCE

    def _with_sessions(self, changes: Sequence[Change]) -> list[LiveChange]:
        now = self._store.get(list(dict.fromkeys(change.session_id for change in changes)))
        visible_to_owner = {key: self._as_owner_sees(session) for key, session in now.items()}
        return [
            LiveChange(change, now[change.session_id], visible_to_owner[change.session_id])
            for change in changes
            if change.session_id in now
        ]

    def _as_owner_sees(self, session: Session) -> Session:
        (visible,) = visible_sessions(self._store, [session], lambda other: other.owner == session.owner)
        return visible
