"""The agents as a store last read them: of thousands that have no news, none is read again."""

from collections.abc import Mapping
from threading import Lock

import sqlalchemy as sa

from muster.core.agents.agent import Agent
from muster.store.database.tables import agents
from muster.store.rows import agent_from

# Counters: each write of an agent takes the next revision; each agent that is forgotten, the next number.
REVISION = "agent-revision"
FORGOTTEN = "agents-forgotten"
AGENT_COUNTERS = (REVISION, FORGOTTEN)
_CHANGED = sa.select(agents).where(agents.c.revision > sa.bindparam("known"))


class KnownAgents:
    """A cache of agents. Several threads may read it, each in a transaction of its own."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._agents: dict[str, Agent] = {}
        self._sorted: tuple[Agent, ...] = ()
        self._revision = -1
        self._numbers: tuple[int, ...] = ()

    def read(self, connection: sa.Connection, counters: Mapping[str, int]) -> tuple[Agent, ...]:
        """Return all agents by id; the same values as before where nothing has changed.

        `counters` are `AGENT_COUNTERS` as this transaction sees them.
        """
        numbers = tuple(counters[name] for name in AGENT_COUNTERS)
        with self._lock:
            if numbers == self._numbers:
                return self._sorted
            if self._numbers[1:] != numbers[1:]:
                self._agents, self._revision = {}, -1
            rows = connection.execute(_CHANGED, {"known": self._revision}).mappings().all()
            if rows or len(self._sorted) != len(self._agents):
                self._agents.update((row["id"], agent_from(row)) for row in rows)
                self._revision = max((row["revision"] for row in rows), default=self._revision)
                # Sorted here: databases differ in the order of text.
                self._sorted = tuple(self._agents[agent_id] for agent_id in sorted(self._agents))
            self._numbers = numbers
            return self._sorted
