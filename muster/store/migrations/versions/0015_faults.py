"""What is remembered of faults: where launches failed, boots of hosts, and from when an agent's silence counts."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.add_column("kernels", sa.Column("boot_id", sa.Text))
    op.add_column("sessions", sa.Column("failed_on", sa.JSON, nullable=False, server_default="[]"))
    op.add_column("agents", sa.Column("silence_counts_from", sa.Float))
    op.add_column("agents", sa.Column("reached", sa.Boolean, nullable=False, server_default=sa.true()))
    op.add_column("agents", sa.Column("launch_record", sa.JSON, nullable=False, server_default="{}"))
