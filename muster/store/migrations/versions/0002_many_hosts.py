"""Sessions that are launched in steps and requeued, agents that are drained, logs in the database."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    # Columns are added one by one: on SQLite, replacing a table would remove the rows that refer to it.
    op.add_column("sessions", sa.Column("step", sa.String(16)))
    op.add_column("sessions", sa.Column("progress", sa.JSON, nullable=False, server_default="{}"))
    op.add_column("sessions", sa.Column("requeue_after_end", sa.Boolean, nullable=False, server_default=sa.false()))
    op.add_column("sessions", sa.Column("requeues", sa.Integer, nullable=False, server_default="0"))
    op.create_index("sessions_by_age", "sessions", ["submitted_at", "id"])
    if op.get_bind().dialect.name == "postgresql":
        op.create_index("sessions_by_start_of_id", "sessions", ["id"], postgresql_ops={"id": "varchar_pattern_ops"})
    # Until now a session that was PREPARING was being started.
    op.execute("UPDATE sessions SET step = 'STARTING' WHERE state = 'PREPARING'")
    op.add_column("agents", sa.Column("unreachable_since", sa.Float))
    op.add_column("agents", sa.Column("drain_reason", sa.Text))
    op.add_column("agents", sa.Column("revision", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index("agents_by_revision", "agents", ["revision"])
    # Until now LOST meant that the last question was not answered.
    op.execute("UPDATE agents SET state = 'UNREACHABLE', unreachable_since = observed_at WHERE state = 'LOST'")
    op.create_table(
        "logs",
        sa.Column("session_id", sa.String(36), sa.ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("kernel_name", sa.String(64), primary_key=True),
        sa.Column("gz", sa.LargeBinary, nullable=False),
    )
