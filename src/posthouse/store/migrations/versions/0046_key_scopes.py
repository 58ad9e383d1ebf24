"""API keys for programs: scopes for /v1, and sender domains that a key is bound to."""

from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

# A key without the first two scopes is refused by the version before.
SCOPES = """
ALTER TABLE api_keys
    ADD COLUMN other_scopes   text[] NOT NULL DEFAULT '{}',
    ADD COLUMN sender_domains text[] NOT NULL DEFAULT '{}',
    DROP CONSTRAINT api_keys_check,
    ADD CHECK (may_send OR may_read OR cardinality(other_scopes) > 0)
"""


def upgrade() -> None:
    op.execute(SCOPES)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
