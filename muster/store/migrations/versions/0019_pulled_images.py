"""Images that were pulled to agents, and when they were last needed."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.create_table(
        "pulled_images",
        sa.Column("agent_id", sa.String(255), primary_key=True),
        sa.Column("reference", sa.Text, primary_key=True),
        sa.Column("image_id", sa.String(80), nullable=False),
        sa.Column("needed_at", sa.Float, nullable=False),
        sa.Column("removed_at", sa.Float),
    )
