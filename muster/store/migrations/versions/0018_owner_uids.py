"""Uids that owners were given from the site's range."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.create_table(
        "owner_uids",
        sa.Column("owner", sa.String(255), primary_key=True),
        sa.Column("uid", sa.BigInteger, nullable=False),
    )
    op.create_index("one_owner_of_a_uid", "owner_uids", ["uid"], unique=True)
