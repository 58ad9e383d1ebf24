"""Mail that operators hold, lanes that they pause, and their entries in accounts' audit logs, to be read together."""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

STATEMENTS = (
    # `held_by` is 'operator', or the lane that is paused; without it the account is suspended, or mail is captured.
    # `due_at` is when an operator's held mail would be due; `paused` is how long operators kept it from being sent.
    """
    ALTER TABLE schedule
        ADD COLUMN held_by text,
        ADD COLUMN due_at  timestamptz,
        ADD COLUMN paused  interval NOT NULL DEFAULT '0'
    """,
    """
    CREATE TABLE lane_pauses (
        lane   text PRIMARY KEY,
        since  timestamptz NOT NULL,
        reason text NOT NULL
    )
    """,
    "CREATE INDEX audit_log_of_operators ON audit_log (id) WHERE user_id IS NULL AND actor = 'operator'",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
