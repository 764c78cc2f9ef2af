"""When the maker of a committed image last said that they are at it."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.add_column("images", sa.Column("touched_at", sa.Float, nullable=False, server_default="0"))
