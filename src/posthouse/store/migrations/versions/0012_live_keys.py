"""Indexes of the credentials and keys that work, and of the keys that have ended; made while mail goes on."""

from posthouse.store.migration_locks import create_indexes

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# Live keys are counted with the account's row locked, beside any number of keys that have ended.
INDEXES = {
    "credentials_live": "credentials (account_id, id) WHERE revoked_at IS NULL",
    "api_keys_live": "api_keys (account_id, coalesce(expires_at, 'infinity')) WHERE revoked_at IS NULL",
    "api_keys_ended": "api_keys (least(revoked_at, expires_at)) WHERE least(revoked_at, expires_at) IS NOT NULL",
}


def upgrade() -> None:
    create_indexes(INDEXES)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
