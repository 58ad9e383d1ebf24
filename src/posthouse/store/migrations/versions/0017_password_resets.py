"""Password resets by mail; where sessions began; the account that a user opened last."""

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

STATEMENTS = (
    """
    CREATE TABLE password_resets (
        user_id    uuid PRIMARY KEY REFERENCES users,
        token_hash bytea NOT NULL UNIQUE,
        expires_at timestamptz NOT NULL
    )
    """,
    "ALTER TABLE sessions ADD COLUMN peer text NOT NULL DEFAULT '', ADD COLUMN user_agent text NOT NULL DEFAULT ''",
    "ALTER TABLE users ADD COLUMN last_account_id uuid",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
