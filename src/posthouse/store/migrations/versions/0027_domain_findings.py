"""What the last check found of each record of a domain, and who hosts its DNS."""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE domains ADD COLUMN findings json, ADD COLUMN dns_host text")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
