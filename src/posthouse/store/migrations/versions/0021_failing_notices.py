"""Whether the owners of an account know that its webhook endpoint fails."""

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE webhook_endpoints ADD COLUMN failing_noted_at timestamptz")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
