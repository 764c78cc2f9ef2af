"""When the maker of a committed image last said that they are at it."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("images", sa.Column("touched_at", sa.Float, nullable=False, server_default="0"))
