"""Content that is forgotten: no one can read it, and its body is deleted once the message is final."""

from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None

# Null: its content is kept. A row of `contents_to_forget` leads to a body that is still there.
STATEMENTS = (
    "ALTER TABLE messages ADD COLUMN forgets_content boolean",
    "CREATE TABLE contents_to_forget (account_id uuid, message_id uuid, PRIMARY KEY (account_id, message_id))",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
