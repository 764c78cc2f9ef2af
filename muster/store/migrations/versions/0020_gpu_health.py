"""What reports have shown of the health of agents' GPUs, and what operators accept of it."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.add_column("agents", sa.Column("gpu_record", sa.JSON, nullable=False, server_default="{}"))
    op.add_column("agents", sa.Column("gpu_accepted", sa.JSON, nullable=False, server_default="{}"))
