"""What kernels used over their lives."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.create_table(
        "usage_steps",
        sa.Column("kernel_id", sa.String(36), primary_key=True),
        sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("begins_at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("session_id", sa.String(36), sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
        *(
            column
            for what in ("cpu", "mem", "gpu")
            for column in (
                sa.Column(what, sa.Float, nullable=False),
                sa.Column(f"{what}_known", sa.Integer, nullable=False),
            )
        ),
    )
    op.create_index("usage_steps_by_session", "usage_steps", ["session_id"])
    op.create_index("usage_steps_by_time", "usage_steps", ["begins_at"])
