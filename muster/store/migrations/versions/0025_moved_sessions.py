"""For which session another was queued again."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("moved_for", sa.String(36)))
