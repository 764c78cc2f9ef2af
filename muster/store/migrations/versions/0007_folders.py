"""Data folders with an owner, whom they are shared with, and which of them a session mounts."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "folders",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("quota_bytes", sa.BigInteger),
        sa.Column("removed_at", sa.Float),
        sa.Column("left_on", sa.JSON, nullable=False),
    )
    op.create_index("one_folder_of_a_name", "folders", ["owner", "name"], unique=True)
    op.create_table(
        "folder_shares",
        sa.Column("folder_id", sa.String(36), sa.ForeignKey("folders.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("grantee", sa.String(255), primary_key=True),
        sa.Column("read_only", sa.Boolean, nullable=False),
    )
    op.create_index("folder_shares_by_grantee", "folder_shares", ["grantee"])
    op.add_column("sessions", sa.Column("folders", sa.JSON, nullable=False, server_default="[]"))
