"""What agents had, had allocated and used, over time."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    amounts = (
        f"{what}_{part}" for what in ("cpu", "mem", "gpu", "gpu_mem") for part in ("capacity", "allocated", "used")
    )
    known = ("cpu_known", "mem_known", "gpu_known", "gpu_mem_known")
    op.create_table(
        "agent_samples",
        sa.Column("agent_id", sa.String(255), primary_key=True),
        sa.Column("span_s", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("begins_at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("resource_group", sa.String(255), nullable=False),
        sa.Column("samples", sa.Integer, nullable=False),
        *(sa.Column(name, sa.Float, nullable=False) for name in amounts),
        *(sa.Column(name, sa.Integer, nullable=False) for name in known),
    )
    op.create_index("agent_samples_by_time", "agent_samples", ["span_s", "begins_at"])
