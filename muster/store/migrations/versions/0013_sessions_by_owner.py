"""A user's list of sessions is found without looking at everybody's."""

from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_index("sessions_by_owner", "sessions", ["owner", "state", "submitted_at"])
