"""One-time links to the page of captured mail, and the sessions that they open."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE captured_mail_secrets (
        secret_hash bytea PRIMARY KEY,
        account_id  uuid NOT NULL REFERENCES accounts,
        is_link     boolean NOT NULL,
        expires_at  timestamptz NOT NULL
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
