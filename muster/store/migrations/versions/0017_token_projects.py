"""Tokens may be for some projects only."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.add_column("tokens", sa.Column("projects", sa.JSON, nullable=False, server_default="[]"))
