"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("resource_group", sa.String(255), nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("result", sa.String(16)),
        sa.Column("exit_code", sa.Integer),
        sa.Column("placed_mode", sa.String(16)),
        sa.Column("generation", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("retry_at", sa.Float),
        sa.Column("submitted_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.Column("public_key", sa.Text),
        sa.Column("wait", sa.JSON, nullable=False),
    )
    op.create_index("sessions_by_state", "sessions", ["state", "submitted_at"])
    op.create_index("sessions_by_name", "sessions", ["name"])
    not_ended = sa.text("state NOT IN ('TERMINATED', 'CANCELLED', 'ERROR')")
    op.create_index(
        "one_active_session_of_a_name",
        "sessions",
        ["name"],
        unique=True,
        sqlite_where=not_ended,
        postgresql_where=not_ended,
    )
    op.create_table(
        "kernels",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("session_id", sa.String(36), sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("role", sa.String(32), nullable=False),
        sa.Column("index", sa.Integer, nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("slots", sa.JSON, nullable=False),
        sa.Column("shm", sa.BigInteger, nullable=False),
        sa.Column("image", sa.String(1024), nullable=False),
        sa.Column("command", sa.Text),
        sa.Column("allocation", sa.JSON(none_as_null=True)),
        sa.Column("container_id", sa.String(64)),
        sa.Column("container_state", sa.String(16)),
        sa.Column("address", sa.String(64)),
        sa.Column("ssh_port", sa.Integer),
        sa.Column("exit_code", sa.Integer),
        sa.Column("oom_killed", sa.Boolean, nullable=False),
        sa.Column("started_at", sa.String(40)),
        sa.Column("finished_at", sa.String(40)),
    )
    op.create_index("kernels_by_session", "kernels", ["session_id", "rank"])
    op.create_table(
        "agents",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("report", sa.JSON, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("observed_at", sa.Float, nullable=False),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("session_id", sa.String(36), sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("from_state", sa.String(16)),
        sa.Column("to_state", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_index("events_by_session", "events", ["session_id", "id"])
    op.create_table(
        "counters",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("value", sa.BigInteger, nullable=False),
    )
