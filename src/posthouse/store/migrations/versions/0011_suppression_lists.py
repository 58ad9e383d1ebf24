"""Indexes for lists of suppressed addresses, made while mail goes on."""

from alembic import op

from posthouse.store.migration_locks import create_indexes

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

# The lists' indexes are for those who say that any time will do: without that, a plan made while the table was empty
# looks up an address by them, for ever after.
INDEXES = {
    "suppressions_conduct": "suppressions (at) INCLUDE (account_id, reason) WHERE reason <> 'manual'",
    "suppressions_newest": "suppressions (account_id, reason, at, email) WHERE at > '-infinity'",
    "suppressions_domain": "suppressions (account_id, split_part(email, '@', 2), reason, at, email)"
    " WHERE at > '-infinity'",
}
CHECKS = ("suppressions_reason_check", "suppressions_note_check")


def upgrade() -> None:
    # Each statement by itself, and each can be done again: whatever was begun and broken off is begun anew.
    with op.get_context().autocommit_block():
        for check in CHECKS:
            op.execute(f"ALTER TABLE suppressions VALIDATE CONSTRAINT {check}")
    create_indexes(INDEXES)
    with op.get_context().autocommit_block():
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS suppressions_at")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
