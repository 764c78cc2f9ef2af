"""Further ids of images: engines keep images in two ways."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    op.create_table(
        "image_ids",
        sa.Column("image_id", sa.String(80), primary_key=True),
        sa.Column("config_id", sa.String(80), nullable=False),
    )
