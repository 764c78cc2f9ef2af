"""Who is signed in to the pages, by which token."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "sign_ins",
        sa.Column("hash", sa.String(64), primary_key=True),
        sa.Column(
            "token_name", sa.String(63), sa.ForeignKey("tokens.name", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("expires_at", sa.Float, nullable=False),
    )
