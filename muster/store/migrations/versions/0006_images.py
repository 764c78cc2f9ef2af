"""Images made of running sessions, with who made them of what."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "images",
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("tag", sa.String(128), primary_key=True),
        sa.Column("owner", sa.String(255), nullable=False),
        sa.Column("public", sa.Boolean, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("parent", sa.String(1024), nullable=False),
        sa.Column("parent_id", sa.String(80), nullable=False),
        sa.Column("session_id", sa.String(36), nullable=False),
        sa.Column("session_name", sa.String(63), nullable=False),
        sa.Column("kernel_name", sa.String(64), nullable=False),
        sa.Column("agent_id", sa.String(255), nullable=False),
        sa.Column("architecture", sa.String(32), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("image_id", sa.String(80), nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )
