"""What works the queue says that it does, so that others notice when it stops."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "heartbeats",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("worker", sa.String(63), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
    )
