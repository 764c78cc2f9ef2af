"""Questions about sessions: find, list, read their stories, wait for them."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from muster.core.model.session import FINAL, Session, SessionState, StoryLine
from muster.core.values.errors import NotFoundError
from muster.service.sessions.list_pages import ListPageRequest, SessionFilter, SessionListPage, session_list_page
from muster.service.sessions.visibility import visible_sessions
from muster.store.store import Store

# What changes seldom is looked at seldom: many may wait, each for hours.
_POLL_S, _LONGEST_POLL_S, _PART_OF_THE_TIME = 0.05, 0.5, 0.025
_MOST_WORDS_OF = 500


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """A query for sessions: ended ones only with `ended` or by their state; only the newest `limit`."""

    ended: bool = False
    states: tuple[SessionState, ...] = ()
    mine: bool = False
    limit: int | None = None


class SessionQueries:
    """The queries for sessions that a user may see: those of `owner`, or everybody's if it is None.

    Any other session is answered as if it did not exist. Waits name no session of other owners.
    """

    def __init__(self, store: Store, owner: str | None = None) -> None:
        self._store = store
        self._owner = owner

    def sees(self, session: Session) -> bool:
        """Return whether the user may see the session."""
        return self._owner in {None, session.owner}

    def find(self, reference: str) -> Session:
        """Return the session of an id, a name or the start of an id. Raises NotFoundError and AmbiguousNameError."""
        (found,) = self.visible([self._store.find(reference, self._owner)])
        return found

    def named(self, references: Iterable[str]) -> list[Session]:
        """Return the sessions of ids and names in their order, each once; of an array's name all. Raises as `find`."""
        found = [session for reference in references for session in self._store.find_all(reference, self._owner)]
        return self.visible(list({session.id: session for session in found}.values()))

    def search(self, query: SessionQuery, user: str) -> list[Session]:
        """Return sessions, oldest first; `user` is whose they are with `mine`."""
        owner = user if query.mine else self._owner
        found = self._store.search(ended=query.ended, states=query.states, owner=owner, limit=query.limit)
        return self.visible(found)

    def list_page(self, filtered: SessionFilter, request: ListPageRequest, cursor: str | None) -> SessionListPage:
        """Return one page of a list. Raises as `session_list_page`."""
        narrowed = filtered if self._owner is None else replace(filtered, owner=self._owner)
        found = session_list_page(self._store, narrowed, request, cursor)
        return replace(found, sessions=self.visible(found.sessions))

    def recent_words(self) -> dict[str, list[str]]:
        """Return the names, owners and projects of the newest sessions, to choose from in a filter."""
        return self._store.recent_words(self._owner, _MOST_WORDS_OF)

    def story(self, reference: str) -> Sequence[StoryLine]:
        """Return a session's story, the oldest line first. Raises as `find`."""
        return self._store.story(self._store.find(reference, self._owner).id)

    def still_runs(self, session: Session) -> bool:
        """Return whether the session runs in the same launch as it did; another launch has other containers."""
        now = self._store.get([session.id]).get(session.id)
        return now is not None and now.state is SessionState.RUNNING and now.generation == session.generation

    def visible(self, sessions: Sequence[Session]) -> list[Session]:
        """Return the same sessions as the user may see them."""
        return list(sessions) if self._owner is None else visible_sessions(self._store, sessions, self.sees)

    def wait_for(
        self, ids: Sequence[str], reached: Callable[[Session], bool], timeout_s: float | None = None
    ) -> Iterator[list[Session]]:
        """Yield the sessions with these ids each time that one of them changed, until all have `reached` or are final.

        Raises TimeoutError, and NotFoundError where one is lost, as with the newest commits of a server.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        found: dict[str, Session] = {}
        last: list[Session] = []
        known, changed_at = None, 0.0
        while True:
            # Where nothing has changed, the sessions need not be read: an array may have a thousand. What has ended
            # does not change any more.
            revision = self._store.session_revision()
            if revision != known:
                known, changed_at = revision, time.monotonic()
                left = [id_ for id_ in ids if id_ not in found or found[id_].state not in FINAL]
                read = self._store.get(left)
                if lost := [found[id_].name for id_ in left if id_ in found and id_ not in read]:
                    raise NotFoundError(f"session {lost[0]} is not there any more: the database was put back")
                found |= read
                now = [found[session_id] for session_id in ids]
                if now != last:
                    yield now
                    last = now
                if all(session.state in FINAL or reached(session) for session in now):
                    return
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(min(_LONGEST_POLL_S, max(_POLL_S, _PART_OF_THE_TIME * (time.monotonic() - changed_at))))
