"""An account's rate of recipients, and the bytes that it stores a day."""

from alembic import op

revision = "0056"
down_revision = "0055"
branch_labels = None
depends_on = None

# `stored_bytes` are of live mail, on `stored_on`.
STATEMENTS = (
    """
    ALTER TABLE accounts
        ADD COLUMN recipients_full_at timestamptz NOT NULL DEFAULT 'epoch',
        ADD COLUMN stored_on date,
        ADD COLUMN stored_bytes bigint NOT NULL DEFAULT 0,
        ADD COLUMN stored_test_bytes bigint NOT NULL DEFAULT 0
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
