"""Sessions that a browser's cookie renews, and links that log in once."""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    ALTER TABLE sessions
        ADD COLUMN renewal_hash        bytea,
        ADD COLUMN renewal_hash_before bytea,
        ADD COLUMN renewal_salt        bytea,
        ADD COLUMN renewed_at          timestamptz
    """,
    # Sessions of hours are few: this takes milliseconds.
    "CREATE UNIQUE INDEX sessions_renewal ON sessions (renewal_hash) WHERE renewal_hash IS NOT NULL",
    """
    CREATE UNIQUE INDEX sessions_renewal_before ON sessions (renewal_hash_before)
    WHERE renewal_hash_before IS NOT NULL
    """,
    """
    CREATE TABLE login_links (
        token_hash bytea PRIMARY KEY,
        user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
        expires_at timestamptz NOT NULL
    )
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
