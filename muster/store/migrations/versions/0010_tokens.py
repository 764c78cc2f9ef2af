"""Tokens for the API, hashed; which submits with an idempotency key were done."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("user", sa.String(255), nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.Column("last_used_at", sa.Float),
    )
    op.create_index("tokens_by_hash", "tokens", ["hash"], unique=True)
    op.create_table(
        "submissions",
        sa.Column("caller", sa.String(255), primary_key=True),
        sa.Column("key", sa.String(255), primary_key=True),
        sa.Column("request_hash", sa.String(64), nullable=False),
        sa.Column("session_ids", sa.JSON, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_index("submissions_by_age", "submissions", ["at"])
