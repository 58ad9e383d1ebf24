"""Alerts that members chose, what they are raised for, and the notices to mail."""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

# A member who leaves, and an alert that is no longer chosen, leave nothing behind.
STATEMENTS = (
    """
    CREATE TABLE alerts (
        account_id uuid NOT NULL,
        user_id    uuid NOT NULL,
        kind       text NOT NULL,
        threshold  double precision NOT NULL,
        PRIMARY KEY (account_id, user_id, kind),
        FOREIGN KEY (account_id, user_id) REFERENCES memberships ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE alert_states (
        account_id uuid NOT NULL,
        user_id    uuid NOT NULL,
        kind       text NOT NULL,
        subject    text NOT NULL,
        label      text NOT NULL,
        raised_at  timestamptz NOT NULL,
        PRIMARY KEY (account_id, user_id, kind, subject),
        FOREIGN KEY (account_id, user_id, kind) REFERENCES alerts ON DELETE CASCADE
    )
    """,
    """
    CREATE TABLE alert_notices (
        id         uuid PRIMARY KEY,
        account_id uuid NOT NULL,
        user_id    uuid NOT NULL,
        kind       text NOT NULL,
        is_raised  boolean NOT NULL,
        label      text NOT NULL,
        value      double precision,
        threshold  double precision NOT NULL,
        at         timestamptz NOT NULL,
        tried_at   timestamptz,
        FOREIGN KEY (account_id, user_id, kind) REFERENCES alerts ON DELETE CASCADE
    )
    """,
    "CREATE INDEX alert_notices_alert ON alert_notices (account_id, user_id, kind)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
