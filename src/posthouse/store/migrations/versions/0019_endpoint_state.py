"""Whether a webhook's URL answers, and when the attempt of a webhook delivery was due."""

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Endpoints begin as new: with their next 2xx they are called as before.
    op.execute("ALTER TABLE webhook_endpoints ADD COLUMN answered_at timestamptz, ADD COLUMN failing_since timestamptz")
    # `next_at` moves with every lease, claim and postponement; `due_at` with the schedule of attempts alone.
    # The default is for processes of the version before, which go on while machines are restarted in turn.
    op.execute("ALTER TABLE calls ADD COLUMN due_at timestamptz NOT NULL DEFAULT now()")
    op.execute("UPDATE calls SET due_at = next_at")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
