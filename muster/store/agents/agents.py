"""The agents in the database: what observing them reported, and what people said of them."""

from collections.abc import Iterable, Mapping

import sqlalchemy as sa

from muster.core.agents.agent import Agent
from muster.core.agents.gpu_health import AcceptedSymptoms
from muster.core.agents.launch_record import LaunchRecord
from muster.core.values.errors import NotFoundError
from muster.store.agents.known import AGENT_COUNTERS, FORGOTTEN, REVISION, KnownAgents
from muster.store.agents.left import keep_what_was_said, say_it_again
from muster.store.database.connection import reading, upsert, writing
from muster.store.database.counters import increment_counter, values_of
from muster.store.database.tables import agents
from muster.store.rows import accepted_symptoms_row, agent_row, launch_record_from, launch_record_row


class Agents:
    """A table of agents, keyed by id."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._known = KnownAgents()

    def all(self) -> tuple[Agent, ...]:
        """Return all agents by id."""
        with reading(self._engine) as connection:
            return self.read(connection, values_of(connection, AGENT_COUNTERS))

    def read(self, connection: sa.Connection, counters: Mapping[str, int]) -> tuple[Agent, ...]:
        """Return as `KnownAgents.read`."""
        return self._known.read(connection, counters)

    def save(self, observed: Iterable[Agent]) -> None:
        """Save what observing agents reported. Whether they are drained stays as it is."""
        saved = {agent.id: agent for agent in observed}
        rows = [agent_row(saved[agent_id]) for agent_id in sorted(saved)]
        self._known.note_written({row["id"]: (row["report"], saved[row["id"]].report) for row in rows})
        with writing(self._engine) as connection:
            revision = increment_counter(connection, REVISION)
            upsert(connection, agents, [{**row, "revision": revision} for row in rows])
            say_it_again(connection, saved)

    def drain(self, agent_id: str, reason: str, *, keeps_reason: bool = False) -> bool:
        """Let no session start on it until it is resumed. Return whether that is a change. Raises NotFoundError.

        With `keeps_reason`, one that is drained already keeps the reason that it has.
        """
        return self._set_drain(agent_id, reason, keeps_reason=keeps_reason)

    def resume(self, agent_id: str) -> bool:
        """Resume an agent; return whether it was drained or suspect. Raises NotFoundError."""
        suspect = any(agent.id == agent_id and agent.is_suspect for agent in self.all())
        self.save_launch_records({agent_id: LaunchRecord()})
        return self._set_drain(agent_id, None) or suspect

    def save_launch_records(self, records: Mapping[str, LaunchRecord], read: Iterable[Agent] = ()) -> None:
        """Save how launches went, by agent id. What has changed since the agents were `read`, by a resume, stays."""
        if not records:
            return
        before = {agent.id: agent.launch_record for agent in read}
        with writing(self._engine) as connection:
            revision = increment_counter(connection, REVISION)
            for agent_id, record in sorted(records.items()):
                this = agents.c.id == agent_id
                now = connection.execute(sa.select(agents.c.launch_record).where(this)).scalar()
                if now is not None and before.get(agent_id) in {None, launch_record_from(now)}:
                    values = {"launch_record": launch_record_row(record), "revision": revision}
                    connection.execute(sa.update(agents).where(this).values(**values))

    def accept_symptoms(self, agent_id: str, accepted: AcceptedSymptoms) -> None:
        """Accept symptoms of an agent's GPUs, each in place of those that were accepted of that GPU before."""
        this = agents.c.id == agent_id
        with writing(self._engine) as connection:
            revision = increment_counter(connection, REVISION)
            before = connection.execute(sa.select(agents.c.gpu_accepted).where(this)).scalar() or {}
            values = {"gpu_accepted": {**before, **accepted_symptoms_row(accepted)}, "revision": revision}
            connection.execute(sa.update(agents).where(this).values(**values))

    def forget(self, agent_id: str) -> None:
        """Forget an agent that has left the inventory, but for its drain and the symptoms that are accepted."""
        with writing(self._engine) as connection:
            increment_counter(connection, FORGOTTEN)
            keep_what_was_said(connection, agent_id)
            connection.execute(sa.delete(agents).where(agents.c.id == agent_id))

    def _set_drain(self, agent_id: str, reason: str | None, *, keeps_reason: bool = False) -> bool:
        is_agent, known = agents.c.id == agent_id, agents.c.drain_reason
        changing = sa.update(agents).where(
            is_agent, known.is_(None) if keeps_reason else known.is_distinct_from(reason)
        )
        with writing(self._engine) as connection:
            revision = increment_counter(connection, REVISION)
            if connection.execute(changing.values(drain_reason=reason, revision=revision)).rowcount:
                return True
            if connection.execute(sa.select(agents.c.id).where(is_agent)).first() is None:
                raise NotFoundError(f"there is no agent {agent_id!r}; see `muster agents`")
            return False
