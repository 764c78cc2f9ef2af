"""How often the spec of a session was changed while it waited."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("updates", sa.BigInteger, nullable=False, server_default="0"))
