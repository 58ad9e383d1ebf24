"""Retries that a member asked for: how many of a message, and the rate of an account."""

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
CREATE TABLE message_retries (
    account_id uuid NOT NULL REFERENCES accounts,
    message_id uuid NOT NULL,
    count      smallint NOT NULL CHECK (count > 0),
    last_at    timestamptz NOT NULL,
    PRIMARY KEY (account_id, message_id)
)
""")
    op.execute("CREATE INDEX message_retries_last_at ON message_retries (last_at)")
    op.execute("""
CREATE TABLE retry_rates (
    account_id uuid PRIMARY KEY REFERENCES accounts,
    full_at    timestamptz NOT NULL
)
""")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
