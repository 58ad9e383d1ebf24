"""Users who may use the operator's routes and pages; the flag is set from the command line alone."""

from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE users ADD COLUMN operator_since timestamptz")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
