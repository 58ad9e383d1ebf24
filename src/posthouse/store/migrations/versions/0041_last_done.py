"""When upkeep was last done, and a backup last noted."""

from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("CREATE TABLE last_done (name text PRIMARY KEY, at timestamptz NOT NULL)")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
