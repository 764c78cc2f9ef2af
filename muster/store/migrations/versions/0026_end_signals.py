"""The signals before the end of sessions: how many, when, and which programs got them."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("signals", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("sessions", sa.Column("signalled_at", sa.Float))
    op.add_column("sessions", sa.Column("leaves_at", sa.Float))
    op.add_column("sessions", sa.Column("ends_for", sa.Text))
    op.add_column("kernels", sa.Column("signals", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("kernels", sa.Column("signal_receivers", sa.BigInteger, nullable=False, server_default="0"))
