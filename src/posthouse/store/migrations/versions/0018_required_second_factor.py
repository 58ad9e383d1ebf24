"""Accounts whose members need a second factor."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE accounts ADD COLUMN requires_totp boolean NOT NULL DEFAULT false")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
