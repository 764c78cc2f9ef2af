"""What users have added to the time limits of their sessions."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("extended_s", sa.BigInteger, nullable=False, server_default="0"))
