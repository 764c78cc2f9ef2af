"""Owners' secrets, sealed; and deliveries of changes that are still to be sent."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.create_table(
        "secrets",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("sealed", sa.LargeBinary, nullable=False),
        sa.Column("key_id", sa.String(16), nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
    op.create_table(
        "deliveries",
        sa.Column("event_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("target", sa.String(255), primary_key=True),
        sa.Column("session_id", sa.String(36), sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Float, nullable=False),
    )
    op.create_index("deliveries_by_session", "deliveries", ["session_id", "target", "event_id"])
    # Earlier changes are not sent.
    op.execute("INSERT INTO counters (name, value) SELECT 'couriers', MAX(id) FROM events HAVING MAX(id) IS NOT NULL")
