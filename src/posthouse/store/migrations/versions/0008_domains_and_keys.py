"""Domains whose keys are rotated; credentials and keys that are rotated, and say when they were last used."""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

# A domain's row has the keys that sign. Here are those that wait for their record to be seen, of which there is
# one pair at most, and those that signed before them, as long as mail with their signatures may be on its way:
# for these the public half is enough. asked_at is when someone last had DNS asked about a domain.
DOMAIN_KEYS = """
ALTER TABLE domains ADD COLUMN asked_at timestamptz;

CREATE TABLE domain_keys (
    account_id       uuid NOT NULL,
    domain_id        uuid NOT NULL,
    selector         text NOT NULL,
    dkim_public      text NOT NULL,
    dkim_sealed      bytea,
    ed25519_selector text,
    ed25519_public   text,
    ed25519_sealed   bytea,
    created_at       timestamptz NOT NULL,
    checked_at       timestamptz NOT NULL,
    retired_at       timestamptz,
    PRIMARY KEY (account_id, domain_id, selector),
    FOREIGN KEY (account_id, domain_id) REFERENCES domains ON DELETE CASCADE,
    CHECK (num_nulls(ed25519_selector, ed25519_public) IN (0, 2)),
    CHECK ((retired_at IS NULL) = (dkim_sealed IS NOT NULL)),
    CHECK ((retired_at IS NULL) = (ed25519_sealed IS NOT NULL)),
    CHECK (ed25519_sealed IS NULL OR ed25519_public IS NOT NULL)
);
CREATE UNIQUE INDEX domain_keys_pending ON domain_keys (account_id, domain_id) WHERE retired_at IS NULL;
CREATE INDEX domain_keys_checked_at ON domain_keys (checked_at) WHERE retired_at IS NULL;
CREATE INDEX domain_keys_retired_at ON domain_keys (retired_at) WHERE retired_at IS NOT NULL;
"""

# last_used_at is in no index, so that writing it stays within the page.
SECRETS = """
ALTER TABLE credentials
    ADD COLUMN previous_hash  bytea,
    ADD COLUMN previous_until timestamptz,
    ADD COLUMN last_used_at   timestamptz,
    ADD CHECK ((previous_hash IS NULL) = (previous_until IS NULL));

ALTER TABLE api_keys
    ADD COLUMN may_send         boolean NOT NULL DEFAULT true,
    ADD COLUMN allowed_networks cidr[] NOT NULL DEFAULT '{}',
    ADD COLUMN last_used_at     timestamptz,
    ADD COLUMN replaced_by      uuid,
    ADD CHECK (may_send OR may_read);
"""


def upgrade() -> None:
    for statements in (DOMAIN_KEYS, SECRETS):
        for statement in statements.split(";\n"):
            if statement.strip():
                op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("what was recorded would be forgotten; restore a backup instead")
