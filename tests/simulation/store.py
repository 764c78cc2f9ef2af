"""The real store on SQLite in memory, which schedules share one after the other; what it commits, the checker sees."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Protocol
from unittest import mock

import sqlalchemy as sa

from muster.core.agents.agent import Agent
from muster.core.lifecycle.transitions import Event
from muster.core.model.snapshot import Snapshot
from muster.store import store as store_module
from muster.store.agents.agents import Agents
from muster.store.database import connection as connection_module
from muster.store.database.connection import open_engine
from muster.store.database.tables import metadata
from muster.store.store import Store
from tests.simulation.lean_sqlite import LeanConnection


class Gate(Protocol):
    """What all transactions pass."""

    def before_transaction(self) -> None: ...

    def after_transaction(self) -> None: ...


class Writes:
    """The number of writing transactions of all stores, and whether the checker watches the present one."""

    count = 0
    are_watched = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Leave it to the checker to say when the transaction is over: first it must learn what was committed."""
        before, self.are_watched = self.are_watched, True
        try:
            yield
        finally:
            self.are_watched = before


WRITES = Writes()


@cache
def _engine() -> sa.Engine:
    return open_engine("sqlite://")


def _opened(_url: str) -> sa.Engine:
    # One of its own for each store, as the fence between workers tells them apart by that.
    return _engine().execution_options()


@cache
def _connection() -> LeanConnection:
    return LeanConnection(_engine())


def backup() -> sqlite3.Connection:
    """Return a copy of the database."""
    return _connection().copied()


def restore(copy: sqlite3.Connection) -> None:
    """Put a copy in the place of the database. Stores that are open must not be used any more."""
    _connection().replace_by(copy)
    WRITES.count += 1


@contextmanager
def emptied(gate: Gate) -> Iterator[None]:
    """Empty the database, and let all stores that are opened meanwhile use it.

    The engine stays: what was compiled for it serves the next schedule.
    """
    with _connection().transaction(writes=True) as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(sa.delete(table))
    WRITES.count += 1

    @contextmanager
    def gated(_engine: sa.Engine, options: Mapping[str, Mapping[str, Any]]) -> Iterator[LeanConnection]:
        gate.before_transaction()
        writes = options is connection_module._WRITING
        if writes:
            WRITES.count += 1
        with _connection().transaction(writes=writes) as connection:
            yield connection
        if not WRITES.are_watched:
            gate.after_transaction()

    with (
        mock.patch.object(store_module, "open_engine", new=_opened),
        mock.patch.object(connection_module, "_transaction", gated),
    ):
        yield


class WatchedStore(Store):
    """A store whose commits are seen by the checker."""

    def __init__(
        self,
        committed: Callable[[Sequence[Event]], None],
        observed: Callable[[Iterable[Agent]], None],
        forgotten: Callable[[str], None],
    ) -> None:
        super().__init__("sqlite://")
        self.agents = _WatchedAgents(self._engine, observed, forgotten)
        self._committed = committed
        self._last: tuple[int, Snapshot] | None = None

    def close(self) -> None:
        """Leave the engine open, for the next schedule."""

    def snapshot(self, now: float) -> Snapshot:
        """Return what is so now; what nobody has written to since it was read is not read again."""
        if self._last is None or self._last[0] != WRITES.count:
            self._last = WRITES.count, super().snapshot(now)
        return replace(self._last[1], now=now)

    def apply(self, changes: Iterable[Event]) -> list[Event]:
        with WRITES.watched():
            applied = super().apply(changes)
        self._committed(applied)
        return applied


class _WatchedAgents(Agents):
    """The agents of a watched store."""

    def __init__(
        self, engine: sa.Engine, observed: Callable[[Iterable[Agent]], None], forgotten: Callable[[str], None]
    ) -> None:
        super().__init__(engine)
        self._observed = observed
        self._forgotten = forgotten

    def save(self, observed: Iterable[Agent]) -> None:
        observed = list(observed)
        with WRITES.watched():
            super().save(observed)
        self._observed(observed)

    def forget(self, agent_id: str) -> None:
        with WRITES.watched():
            super().forget(agent_id)
        self._forgotten(agent_id)
