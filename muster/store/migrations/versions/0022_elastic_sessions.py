"""With how many of their kernels elastic sessions run."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("given", sa.Integer))
