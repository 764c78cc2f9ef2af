"""Each kernel's usage in each of its launches; the notice that a session's users get before its end."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("notice", sa.Text))
    op.add_column("sessions", sa.Column("warned_at", sa.Float))
    op.create_table(
        "kernel_uses",
        sa.Column("kernel_id", sa.String(36), primary_key=True),
        sa.Column("generation", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("session_id", sa.String(36), sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
        sa.Column("began_at", sa.Float, nullable=False),
        sa.Column("seen_at", sa.Float, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("cpu_seconds", sa.Float),
        sa.Column("mem_bytes", sa.BigInteger),
        sa.Column("mem_peak_bytes", sa.BigInteger),
        sa.Column("net_rx_bytes", sa.BigInteger),
        sa.Column("net_tx_bytes", sa.BigInteger),
        sa.Column("gpu_seconds", sa.Float),
        sa.Column("gpu_percent", sa.Float),
        sa.Column("cpu_cores", sa.Float),
        sa.Column("net_bytes_per_s", sa.Float),
        sa.Column("idle_since", sa.Float),
    )
    op.create_index("kernel_uses_by_session", "kernel_uses", ["session_id"])
