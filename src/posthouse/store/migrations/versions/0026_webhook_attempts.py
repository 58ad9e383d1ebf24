"""Every failed attempt of a webhook delivery, beside the last."""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # In the delivery's row: what succeeds at once costs nothing, and the log's retention holds for it too.
    op.execute("ALTER TABLE webhook_deliveries ADD COLUMN failed_attempts jsonb")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
