"""Metadata of a message: pairs of its sender, as JSON text; null without any."""

from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE messages ADD COLUMN metadata json")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
