"""Kernels that do not keep to their shares of GPUs."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("kernels", sa.Column("gpu_problem", sa.Text))
