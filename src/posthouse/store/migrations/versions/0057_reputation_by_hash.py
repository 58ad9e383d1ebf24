"""Which of the day's recipients were erased, by keyed hash, and who caused an invitation: reputation counts both."""

from alembic import op

revision = "0057"
down_revision = "0056"
branch_labels = None
depends_on = None

# Rows stay for a day, as long as reputation counts a message. Messages of invitations belong to the account
# `sender_id`, which is the service's.
STATEMENTS = (
    """
    CREATE TABLE erased_recipients (
        account_id uuid NOT NULL,
        message_id uuid NOT NULL,
        position smallint NOT NULL,
        hash bytea NOT NULL,
        PRIMARY KEY (account_id, message_id, position)
    )
    """,
    "CREATE INDEX erased_recipients_age ON erased_recipients (message_id)",
    """
    CREATE TABLE mailed_invitations (
        account_id uuid NOT NULL,
        message_id uuid NOT NULL,
        sender_id uuid NOT NULL,
        PRIMARY KEY (account_id, message_id)
    )
    """,
    "CREATE INDEX mailed_invitations_age ON mailed_invitations (message_id)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
