"""Agents set aside for a time; what ended lately, found without reading all that ever ended."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "reservations",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("begins_at", sa.Float, nullable=False),
        sa.Column("ends_at", sa.Float, nullable=False),
        sa.Column("resource_group", sa.String(255)),
        sa.Column("agents", sa.JSON, nullable=False),
        sa.Column("users", sa.JSON, nullable=False),
        sa.Column("projects", sa.JSON, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_index("sessions_by_end", "sessions", ["ended_at"])
