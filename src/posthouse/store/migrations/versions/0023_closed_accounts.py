"""Accounts that an operator closed: suspended, and without credentials and members."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE accounts ADD COLUMN closed_at timestamptz")
    op.execute(
        "ALTER TABLE accounts ADD CONSTRAINT accounts_closed_is_suspended "
        "CHECK (closed_at IS NULL OR suspended_at IS NOT NULL)"
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
