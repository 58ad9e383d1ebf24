"""Service time, noted by the processes: a new process continues it though the database's clock has stepped."""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TABLE service_clock (
            is_the_only_row boolean PRIMARY KEY DEFAULT true CHECK (is_the_only_row),
            service_time timestamptz,
            noted_at timestamptz,
            acceptances integer NOT NULL DEFAULT 0
        )
        """
    )
    op.execute("INSERT INTO service_clock DEFAULT VALUES")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
