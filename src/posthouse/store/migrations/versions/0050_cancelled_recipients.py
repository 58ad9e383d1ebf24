"""A recipient may be cancelled: its sender took the mail back before it was tried, and its credit is returned."""

from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

# Each partition has checks of its own beside the inherited ones, whatever their names.
DROP = """
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT held.conrelid::regclass AS part, held.conname AS name
        FROM pg_constraint held
        WHERE held.contype = 'c'
          AND pg_get_constraintdef(held.oid) ~ 'billing_status|deferred'
          AND (held.conrelid = 'recipients'::regclass OR held.conrelid IN (
            SELECT inhrelid FROM pg_inherits WHERE inhparent = 'recipients'::regclass))
        ORDER BY held.conrelid <> 'recipients'::regclass
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I', found.part, found.name);
    END LOOP;
END $$
"""

# Not validated: what is stored passed stricter checks.
ADD = """
ALTER TABLE recipients
    ADD COLUMN cancelled_at timestamptz,
    ADD CONSTRAINT recipients_status_check
        CHECK (status IN ('queued', 'deferred', 'delivered', 'bounced', 'failed', 'cancelled')) NOT VALID,
    ADD CONSTRAINT recipients_cancelled_check
        CHECK ((status = 'cancelled') = (cancelled_at IS NOT NULL)) NOT VALID,
    ADD CONSTRAINT recipients_billing_check CHECK (CASE
        WHEN status = 'delivered' THEN billing_status = 'settled'
        WHEN status = 'failed' THEN billing_status IN ('settled', 'released')
        WHEN status IN ('bounced', 'cancelled') THEN billing_status = 'released'
        ELSE billing_status = 'reserved' END) NOT VALID
"""


def upgrade() -> None:
    op.execute(DROP)
    op.execute(ADD)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
