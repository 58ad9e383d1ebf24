"""A recipient that failed may have its credit returned: the check on its billing status allows it."""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

# Each partition has a check of its own beside the inherited one, whatever its name.
DROP = """
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT held.conrelid::regclass AS part, held.conname AS name
        FROM pg_constraint held
        WHERE held.contype = 'c' AND pg_get_constraintdef(held.oid) LIKE '%billing_status%'
          AND (held.conrelid = 'recipients'::regclass OR held.conrelid IN (
            SELECT inhrelid FROM pg_inherits WHERE inhparent = 'recipients'::regclass))
        ORDER BY held.conrelid <> 'recipients'::regclass
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I', found.part, found.name);
    END LOOP;
END $$
"""

# Not validated: what is stored passed a stricter check.
ADD = """
ALTER TABLE recipients ADD CONSTRAINT recipients_billing_check CHECK (CASE
    WHEN status = 'delivered' THEN billing_status = 'settled'
    WHEN status = 'failed' THEN billing_status IN ('settled', 'released')
    WHEN status = 'bounced' THEN billing_status = 'released'
    ELSE billing_status = 'reserved' END) NOT VALID
"""


def upgrade() -> None:
    op.execute(DROP)
    op.execute(ADD)


def downgrade() -> None:
    raise NotImplementedError("credits of failed mail were returned; restore a backup instead")
