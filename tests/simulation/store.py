"""The real store on one SQLite file, which schedules share one after the other; what it commits, the checker sees."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import sqlalchemy as sa

from muster.core.agents.agent import Agent
from muster.core.lifecycle.transitions import Event
from muster.core.model.snapshot import Snapshot
from muster.store import store as store_module
from muster.store.database import connection as connection_module
from muster.store.database.connection import open_engine, writing
from muster.store.database.tables import metadata
from muster.store.store import Store

_MEMORY = Path("/dev/shm")


class Writes:
    """How many transactions have written, of all stores."""

    count = 0


WRITES = Writes()


@cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="muster-simulation-", dir=_MEMORY if _MEMORY.is_dir() else None)


@cache
def _engine() -> sa.Engine:
    return open_engine(f"sqlite:///{_directory().name}/muster.db")


@contextmanager
def emptied(passes: Callable[[], None]) -> Iterator[None]:
    """Empty the database, and let all stores that are opened meanwhile use it.

    `passes` is called before each transaction. The engine stays: what it compiled serves the next schedule.
    """
    with writing(_engine()) as connection:
        for table in reversed(metadata.sorted_tables):
            connection.execute(sa.delete(table))
    WRITES.count += 1
    transaction = connection_module._transaction

    @contextmanager
    def gated(engine: sa.Engine, options: Mapping[str, Mapping[str, Any]]) -> Iterator[sa.Connection]:
        passes()
        if options is connection_module._WRITING:
            WRITES.count += 1
        with transaction(engine, options) as connection:
            yield connection

    with (
        mock.patch.object(store_module, "open_engine", return_value=_engine()),
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
        self._committed = committed
        self._observed = observed
        self._forgotten = forgotten
        self._last: tuple[int, Snapshot] | None = None

    def close(self) -> None:
        """Leave the engine open, for the next schedule."""

    def snapshot(self, now: float) -> Snapshot:
        """Return what is so now; what nobody has written to since it was read is not read again."""
        if self._last is None or self._last[0] != WRITES.count:
            self._last = WRITES.count, super().snapshot(now)
        return replace(self._last[1], now=now)

    def apply(self, changes: Iterable[Event]) -> list[Event]:
        applied = super().apply(changes)
        self._committed(applied)
        return applied

    def save_agents(self, observed: Iterable[Agent]) -> None:
        observed = list(observed)
        super().save_agents(observed)
        self._observed(observed)

    def forget_agent(self, agent_id: str) -> None:
        super().forget_agent(agent_id)
        self._forgotten(agent_id)
