"""What is known of an account's conduct."""

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Upkeep raises accounts that are good within its next run.
    op.execute(
        """ALTER TABLE accounts ADD COLUMN tier text NOT NULL DEFAULT 'new'
           CHECK (tier IN ('new', 'good', 'watched'))"""
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
