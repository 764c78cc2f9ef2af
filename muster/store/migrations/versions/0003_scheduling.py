"""Sessions that are held, of an array, of a project; reasons to wait that many sessions share."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("project", sa.String(255), nullable=False, server_default="default"))
    op.add_column("sessions", sa.Column("held_by", sa.String(255)))
    op.add_column("sessions", sa.Column("array_id", sa.String(36)))
    op.add_column("sessions", sa.Column("array_name", sa.String(63)))
    op.add_column("sessions", sa.Column("array_index", sa.Integer))
    op.add_column("sessions", sa.Column("stranded_on", sa.JSON, nullable=False, server_default="[]"))
    op.create_index("sessions_by_project", "sessions", ["project"])
    op.create_index("sessions_by_array", "sessions", ["array_id", "array_index"])
    op.create_index("sessions_by_array_name", "sessions", ["array_name"])
    op.create_table(
        "waits",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("wait", sa.JSON, nullable=False),
    )
    op.add_column("sessions", sa.Column("wait_id", sa.BigInteger))
    op.create_index("sessions_by_wait", "sessions", ["wait_id"])
    op.add_column("sessions", sa.Column("revision", sa.BigInteger, nullable=False, server_default="0"))
    op.create_index("sessions_by_revision", "sessions", ["revision"])
    # The next pass records again why each session waits.
    op.drop_column("sessions", "wait")
