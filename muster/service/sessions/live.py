"""Changes of sessions as they happen, read once for all who listen."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from muster.core.model.session import Session
from muster.core.values.errors import StoreUnavailableError
from muster.service.questions.why import seen_sessions
from muster.service.sessions.sessions import Sessions
from muster.store.sessions.changes import Change

log = logging.getLogger("muster.live")
POLL_S = 0.2
_MOST_AT_ONCE = 500


@dataclass(frozen=True, slots=True, eq=False)
class LiveChange:
    """A line of a session's story, and the session as it is since; all who listen are given the same one.

    `told_owner` is the session as its owner is told of it: without others' names in why it waits.
    """

    change: Change
    session: Session
    told_owner: Session


Listener = Callable[[Sequence[LiveChange]], None]


class LiveChanges:
    """One thread reads the store for any number of listeners, and does not while there is none.

    Where the database tells of news it is woken by them, and otherwise it looks five times a second.
    """

    def __init__(self, service: Sessions) -> None:
        self._service = service
        self._listeners: set[Listener] = set()
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._stopped = threading.Event()
        self._last = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        reader = threading.Thread(target=self._run, name="live", daemon=True)
        with self._service.store.listen(lambda _message: self._news.set()):
            reader.start()
            try:
                yield
            finally:
                self._stopped.set()
                self._news.set()
                reader.join()

    def add(self, listener: Listener) -> int:
        """Calls it from another thread with what happens from now on; the number of the last change before that."""
        with self._lock:
            if not self._listeners:
                self._last = self._service.store.last_event()
            self._listeners.add(listener)
            self._news.set()
            return self._last

    def remove(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.discard(listener)

    def after(self, number: int, until: int) -> list[LiveChange]:
        """What a listener missed: the changes after one number, up to another; not more than some hundreds."""
        changes = self._service.store.changes.after(number, _MOST_AT_ONCE)
        return self._told([change for change in changes if change.id <= until])

    def _run(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                idle = not self._listeners
            self._news.wait(None if idle else POLL_S)
            self._news.clear()
            try:
                while self._read():
                    continue
            except StoreUnavailableError as error:
                log.warning("%s", error)
                self._stopped.wait(POLL_S)

    def _read(self) -> bool:
        """Whether there may be more."""
        with self._lock:
            if not self._listeners:
                return False
            last = self._last
        # Without the lock: whoever comes or goes does not wait for the database.
        changes = self._service.store.changes.after(last, _MOST_AT_ONCE)
        if not changes:
            return False
        told = self._told(changes)
        with self._lock:
            # Those who are here now may have come when all others had gone, and later than these changes.
            news = [live for live in told if live.change.id > self._last]
            self._last = max(self._last, changes[-1].id)
            if news:
                for listener in self._listeners:
                    listener(news)
        return len(changes) == _MOST_AT_ONCE

    def _told(self, changes: Sequence[Change]) -> list[LiveChange]:
        now = self._service.store.get(list(dict.fromkeys(change.session_id for change in changes)))
        told_owner = {key: self._told_owner(session) for key, session in now.items()}
        return [
            LiveChange(change, now[change.session_id], told_owner[change.session_id])
            for change in changes
            if change.session_id in now
        ]

    def _told_owner(self, session: Session) -> Session:
        (told,) = seen_sessions(self._service, [session], lambda other: other.owner == session.owner)
        return told
