"""What people said of agents that have left the inventory, until they are back."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.create_table(
        "left_agents",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("drain_reason", sa.Text),
        sa.Column("gpu_accepted", sa.JSON, nullable=False),
    )
