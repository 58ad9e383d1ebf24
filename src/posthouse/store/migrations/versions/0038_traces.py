"""Traces: of a sampled mail, the context that its delivery and its webhooks continue; NULL for all others."""

from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE messages ADD COLUMN trace bytea")
    op.execute("ALTER TABLE calls ADD COLUMN trace bytea")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
