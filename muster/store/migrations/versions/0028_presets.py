"""Users' own presets of the launch page."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.create_table(
        "presets",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("changed_at", sa.Float, nullable=False),
    )
