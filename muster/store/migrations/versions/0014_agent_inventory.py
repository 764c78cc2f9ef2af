"""What the inventory says of an agent stands beside its report, no longer in it."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("agents", sa.Column("inventory", sa.JSON, nullable=False, server_default="{}"))
    agents = sa.table(
        "agents", sa.column("id", sa.String), sa.column("report", sa.JSON), sa.column("inventory", sa.JSON)
    )
    connection = op.get_bind()
    for agent_id, report in connection.execute(sa.select(agents.c.id, agents.c.report)).all():
        rest = {name: value for name, value in report.items() if name != "attributes"}
        values = {"report": rest, "inventory": report.get("attributes") or {}}
        connection.execute(sa.update(agents).where(agents.c.id == agent_id).values(**values))
