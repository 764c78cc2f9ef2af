"""What people said of agents that have left the inventory: it is so again when they are back.

A drained host may be out of it for a moment only, by a mistake or because its source failed.
"""

from collections.abc import Collection

import sqlalchemy as sa

from muster.store.database.connection import upsert
from muster.store.database.tables import agents, left_agents

_SAID = (agents.c.id, agents.c.drain_reason, agents.c.gpu_accepted)


def keep_what_was_said(connection: sa.Connection, agent_id: str) -> None:
    """Keep what people said of an agent that leaves. Nobody can say more of it before this transaction is over."""
    said = sa.select(*_SAID).where(agents.c.id == agent_id).with_for_update()
    row = connection.execute(said).mappings().first()
    if row is not None and (row["drain_reason"] is not None or row["gpu_accepted"]):
        upsert(connection, left_agents, [{**row}])


def say_it_again(connection: sa.Connection, agent_ids: Collection[str]) -> None:
    """Give agents what people said of them before they left."""
    for row in connection.execute(sa.select(left_agents)).mappings().all():
        if row["id"] in agent_ids:
            this = {"drain_reason": row["drain_reason"], "gpu_accepted": row["gpu_accepted"]}
            connection.execute(sa.update(agents).where(agents.c.id == row["id"]).values(this))
            connection.execute(sa.delete(left_agents).where(left_agents.c.id == row["id"]))
