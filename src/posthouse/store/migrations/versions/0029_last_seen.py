"""From where a secret was last used, when a member was last seen, and the name that an account's owners chose."""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE credentials ADD COLUMN last_used_from text")
    op.execute("ALTER TABLE api_keys ADD COLUMN last_used_from text")
    op.execute("ALTER TABLE memberships ADD COLUMN last_seen_at timestamptz")
    # Beside the operator's own name for the account, which is unique and which commands take.
    op.execute("ALTER TABLE accounts ADD COLUMN display_name text")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
