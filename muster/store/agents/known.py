"""The agents as a store last read them: of thousands that have no news, none is read again."""

import json
from collections.abc import Mapping
from threading import Lock
from typing import Any

import sqlalchemy as sa

from muster.contract.report import Report, stored_report
from muster.core.agents.agent import Agent
from muster.store.database.counters import kept_value_of
from muster.store.database.postgresql import history_of
from muster.store.database.tables import agents
from muster.store.rows import agent_from

# Counters: each write of an agent takes the next revision; each agent that is forgotten, the next number.
REVISION = "agent-revision"
FORGOTTEN = "agents-forgotten"
AGENT_COUNTERS = (REVISION, FORGOTTEN)
_REPORT = sa.cast(agents.c.report, sa.Text).label("report")
_COLUMNS = [_REPORT if column is agents.c.report else column for column in agents.c]
_CHANGED = sa.select(*_COLUMNS).where(agents.c.revision > sa.bindparam("known"))
_DRAINED = sa.select(agents.c.id).where(agents.c.drain_reason.is_not(None))


def drained_agents(connection: sa.Connection) -> frozenset[str]:
    """Return the ids of the drained agents. Nobody drains another one before this transaction is over."""
    kept_value_of(connection, REVISION)
    return frozenset(connection.execute(_DRAINED).scalars())


class KnownAgents:
    """A cache of agents. Several threads may read it, each in a transaction of its own.

    A report is read from its text once, and one that was written here not at all.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._agents: dict[str, Agent] = {}
        self._sorted: tuple[Agent, ...] = ()
        self._revision = -1
        self._numbers: tuple[int | str, ...] = ()
        self._reports: dict[str, tuple[str, Report | None]] = {}

    def note_written(self, reports: Mapping[str, tuple[str, Report]]) -> None:
        """Remember the texts that are written of agents' reports, by agent id."""
        with self._lock:
            self._reports |= reports

    def read(self, connection: sa.Connection, counters: Mapping[str, int]) -> tuple[Agent, ...]:
        """Return all agents by id; the same values as before where nothing has changed.

        `counters` are `AGENT_COUNTERS` as this transaction sees them.
        """
        numbers: tuple[int | str, ...] = (*map(counters.__getitem__, AGENT_COUNTERS), history_of(connection))
        with self._lock:
            if numbers == self._numbers:
                return self._sorted
            if self._numbers[1:] != numbers[1:]:
                self._agents, self._reports, self._revision = {}, {}, -1
            rows = connection.execute(_CHANGED, {"known": self._revision}).mappings().all()
            if rows or len(self._sorted) != len(self._agents):
                self._agents.update((row["id"], agent_from(row, self._report(row))) for row in rows)
                self._revision = max((row["revision"] for row in rows), default=self._revision)
                # Sorted here: databases differ in the order of text.
                self._sorted = tuple(self._agents[agent_id] for agent_id in sorted(self._agents))
            self._numbers = numbers
            return self._sorted

    def _report(self, row: Mapping[Any, Any]) -> Report | None:
        text, known = row["report"], self._reports.get(row["id"])
        if known is None or known[0] != text:
            known = self._reports[row["id"]] = (text, stored_report(json.loads(text)))
        return known[1]
