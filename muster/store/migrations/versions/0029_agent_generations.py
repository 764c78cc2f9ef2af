"""What a kernel's agent had accepted before the launch: whether it remembers that long."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.add_column("kernels", sa.Column("agent_generation", sa.BigInteger))
