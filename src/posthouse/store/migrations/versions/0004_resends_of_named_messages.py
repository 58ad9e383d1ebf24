"""Resends of messages that are named by their ids."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE resends ADD COLUMN message_ids uuid[]")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
