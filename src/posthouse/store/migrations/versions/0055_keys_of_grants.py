"""A grant of credits has the key of its request, so that a repeated request grants nothing more."""

from alembic import op

revision = "0055"
down_revision = "0054"
branch_labels = None
depends_on = None

# Null: granted by the command line.
STATEMENTS = (
    "ALTER TABLE grants ADD COLUMN key text",
    "CREATE UNIQUE INDEX grants_key ON grants (account_id, key) WHERE key IS NOT NULL",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
