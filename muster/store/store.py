"""The only SQL. What is committed here is true; everything else can be made again from it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from muster.core.agent import Agent
from muster.core.errors import AmbiguousNameError, NameTakenError, NotFoundError
from muster.core.lifecycle import Event
from muster.core.session import FINAL, Session, SessionState
from muster.core.snapshot import Snapshot
from muster.store.connection import open_engine
from muster.store.rows import agent_from, agent_row, columns, kernel_rows, session_from, session_row
from muster.store.tables import agents, counters, events, kernels, sessions

_ENDED = [state.value for state in FINAL]
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One change in a session's life. `at` is in seconds since the epoch."""

    at: float
    from_state: str | None
    to_state: str
    reason: str


class Store:
    """Sessions, kernels, agents and events in a relational database."""

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)

    def close(self) -> None:
        self._engine.dispose()

    def add(self, new: Sequence[Session]) -> None:
        """New sessions with their kernels: all of them or none.

        Raises NameTakenError when a session that has not ended has one of the names.
        """
        if not new:
            return
        with self._writing() as connection:
            names = [session.name for session in new]
            taken = _taken(connection, names)
            if taken:
                raise _name_taken(taken)
            try:
                connection.execute(sa.insert(sessions), [session_row(session) for session in new])
            except sa.exc.IntegrityError:  # in the meantime, where writers do not wait for each other
                raise _name_taken(names) from None
            connection.execute(sa.insert(kernels), [row for session in new for row in kernel_rows(session)])
            lines = [
                {
                    "session_id": s.id,
                    "at": s.submitted_at,
                    "from_state": None,
                    "to_state": s.state,
                    "reason": "submitted",
                }
                for s in new
            ]
            connection.execute(sa.insert(events), lines)

    def apply(self, changes: Iterable[Event]) -> list[Event]:
        """Applies each event whose session is still in the event's `from_state`; returns those."""
        changes = list(changes)
        if not changes:
            return []
        with self._writing() as connection:
            return [event for event in changes if self._apply_one(connection, event)]

    def save_waits(self, waits: Mapping[str, Mapping[str, Any]]) -> None:
        """Why each session is pending; those that are not pending any more are left alone."""
        if not waits:
            return
        statement = (
            sa.update(sessions)
            .where(sessions.c.id == sa.bindparam("session"), sessions.c.state == SessionState.PENDING.value)
            .values(wait=sa.bindparam("why"))
        )
        with self._writing() as connection:
            connection.execute(statement, [{"session": key, "why": dict(wait)} for key, wait in waits.items()])

    def save_agents(self, observed: Iterable[Agent]) -> None:
        with self._writing() as connection:
            for agent in observed:
                row = agent_row(agent)
                done = connection.execute(sa.update(agents).where(agents.c.id == agent.id).values(row))
                if not done.rowcount:
                    connection.execute(sa.insert(agents).values(row))

    def forget_agent(self, agent_id: str) -> None:
        with self._writing() as connection:
            connection.execute(sa.delete(agents).where(agents.c.id == agent_id))

    def next_generation(self, now: float) -> int:
        """A number above every earlier one.

        It follows the clock in milliseconds, so that a database begun anew is not outranked by what agents remember of
        the old one.
        """
        with self._writing() as connection:
            row = connection.execute(sa.select(counters.c.value).where(counters.c.name == "generation")).scalar()
            value = max(int(now * 1000), (row or 0) + 1)
            if row is None:
                connection.execute(sa.insert(counters).values(name="generation", value=value))
            else:
                connection.execute(sa.update(counters).where(counters.c.name == "generation").values(value=value))
            return value

    def snapshot(self, now: float) -> Snapshot:
        """The agents and every session that has not ended, as of one moment."""
        with self._engine.connect() as connection:
            rows = connection.execute(sa.select(agents).order_by(agents.c.id)).mappings()
            known = tuple(agent_from(row) for row in rows)
            query = sa.select(sessions).where(sessions.c.state.not_in(_ENDED))
            return Snapshot(known, tuple(self._sessions(connection, query)), now)

    def search(
        self,
        *,
        ended: bool = False,
        states: Iterable[SessionState] = (),
        owner: str | None = None,
        limit: int | None = None,
    ) -> list[Session]:
        """Sessions, oldest first; those that have ended only when asked for (by `ended` or by their state)."""
        query = sa.select(sessions)
        wanted = [state.value for state in states]
        if wanted:
            query = query.where(sessions.c.state.in_(wanted))
        elif not ended:
            query = query.where(sessions.c.state.not_in(_ENDED))
        if owner is not None:
            query = query.where(sessions.c.owner == owner)
        if limit is not None:
            query = query.order_by(None).order_by(sessions.c.submitted_at.desc(), sessions.c.id.desc()).limit(limit)
        with self._engine.connect() as connection:
            found = self._sessions(connection, query)
        return sorted(found, key=lambda session: (session.submitted_at, session.id))

    def find(self, reference: str) -> Session:
        """By id, by name, or by the start of an id (4 characters or more) where that is nobody's name.

        A name that several sessions had means the one that has not ended, or the newest. Raises NotFoundError, and
        AmbiguousNameError where several that have not ended fit.
        """
        whole = sa.or_(sessions.c.id == reference, sessions.c.name == reference)
        with self._engine.connect() as connection:
            found = self._sessions(connection, sa.select(sessions).where(whole))
            if not found and len(reference) >= 4 and set(reference) <= set("0123456789abcdef-"):
                start = sessions.c.id.startswith(reference, autoescape=True)
                found = self._sessions(connection, sa.select(sessions).where(start))
        if not found:
            raise NotFoundError(f"there is no session {reference!r}; see `muster ls --all`")
        active = [session for session in found if session.state not in FINAL]
        if len(active) > 1:
            ids = ", ".join(session.id for session in active)
            raise AmbiguousNameError(f"{reference!r} fits {len(active)} sessions; name one by its id: {ids}")
        return active[0] if active else max(found, key=lambda session: session.submitted_at)

    def get(self, session_ids: Sequence[str]) -> dict[str, Session]:
        """By id; what does not exist is left out."""
        with self._engine.connect() as connection:
            query = sa.select(sessions).where(sessions.c.id.in_(session_ids))
            return {session.id: session for session in self._sessions(connection, query)}

    def story(self, session_id: str) -> Sequence[StoryLine]:
        query = sa.select(events.c.at, events.c.from_state, events.c.to_state, events.c.reason)
        with self._engine.connect() as connection:
            rows = connection.execute(query.where(events.c.session_id == session_id).order_by(events.c.id))
            return [StoryLine(*row) for row in rows]

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._engine.connect().execution_options(writing=True) as connection, connection.begin():
            yield connection

    @staticmethod
    def _apply_one(connection: sa.Connection, event: Event) -> bool:
        values = {"state": event.to_state.value, **columns(event.session)}
        if event.in_story:
            values["reason"] = event.reason
        applied = connection.execute(
            sa.update(sessions)
            .where(sessions.c.id == event.session_id, sessions.c.state == event.from_state.value)
            .values(values)
        )
        if not applied.rowcount:
            return False
        for kernel_id, changes in event.kernels.items():
            connection.execute(sa.update(kernels).where(kernels.c.id == kernel_id).values(columns(changes)))
        if event.in_story:
            line = {"at": event.at, "from_state": event.from_state.value, "to_state": event.to_state.value}
            connection.execute(sa.insert(events).values(session_id=event.session_id, reason=event.reason, **line))
        return True

    @staticmethod
    def _sessions(connection: sa.Connection, query: sa.Select[Any]) -> list[Session]:
        rows = connection.execute(query).mappings().all()
        members: dict[str, list[Any]] = {row["id"]: [] for row in rows}
        ids = list(members)
        for start in range(0, len(ids), _CHUNK):
            of_these = sa.select(kernels).where(kernels.c.session_id.in_(ids[start : start + _CHUNK]))
            for kernel in connection.execute(of_these.order_by(kernels.c.rank)).mappings():
                members[kernel["session_id"]].append(kernel)
        return [session_from(row, members[row["id"]]) for row in rows]


def _taken(connection: sa.Connection, names: Sequence[str]) -> list[str]:
    """Those of the names that a session has which has not ended."""
    taken: list[str] = []
    for start in range(0, len(names), _CHUNK):
        query = sa.select(sessions.c.name).where(
            sessions.c.name.in_(names[start : start + _CHUNK]), sessions.c.state.not_in(_ENDED)
        )
        taken += connection.execute(query).scalars()
    return taken


def _name_taken(names: Iterable[str]) -> NameTakenError:
    listed = ", ".join(sorted(names))
    return NameTakenError(
        f"name: a session that has not ended is already called {listed}; end it or choose another name"
    )
