"""Mail that is not sent before a given time, and the warm-up's count of the days ahead."""

from alembic import op

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None

# In `schedule`, so that what decides about a recipient needs no other table; in `messages` for readers, once the
# recipient has left the schedule. `warmup_ahead` has the recipients accepted for days to come: {"2026-11-20": 40}.
STATEMENTS = (
    "ALTER TABLE messages ADD COLUMN send_at timestamptz",
    "ALTER TABLE schedule ADD COLUMN send_at timestamptz",
    "ALTER TABLE accounts ADD COLUMN warmup_ahead jsonb",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
