"""Limits and share weights that administrators set, over those of the settings."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.create_table(
        "limit_overrides",
        sa.Column("limited", sa.String(32), primary_key=True),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("running", sa.JSON, nullable=False),
        sa.Column("pending", sa.JSON, nullable=False),
        sa.Column("changed_by", sa.String(255), nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
    op.create_table(
        "weight_overrides",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("changed_by", sa.String(255), nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
