"""use."""

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    pass
