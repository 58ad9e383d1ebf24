"""Domains that an operator's account shares with others."""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The account whose keys sign the mail; null for a domain of the account's own.
    op.execute("ALTER TABLE domains ADD COLUMN shared_from uuid")
    op.execute("CREATE INDEX domains_shared ON domains (name) WHERE shared_from IS NOT NULL")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
