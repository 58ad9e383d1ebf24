"""Endpoints: up to ten URLs of an account beside its webhook, and the events that are composed for them."""

from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None

# Empty filters let everything through. A rotated secret stays valid until `previous_until`.
ENDPOINTS = """
CREATE TABLE endpoints (
    account_id             uuid NOT NULL REFERENCES accounts,
    id                     uuid NOT NULL,
    url                    text NOT NULL,
    types                  text[] NOT NULL CHECK (cardinality(types) > 0),
    sender_domains         text[] NOT NULL DEFAULT '{}',
    tags                   text[] NOT NULL DEFAULT '{}',
    mode                   text CHECK (mode IN ('live', 'test')),
    header_names           text[] NOT NULL DEFAULT '{}',
    headers_sealed         bytea,
    enabled                boolean NOT NULL,
    secret_sealed          bytea NOT NULL,
    previous_secret_sealed bytea,
    previous_until         timestamptz,
    created_at             timestamptz NOT NULL,
    updated_at             timestamptz NOT NULL,
    pinged_at              timestamptz,
    answered_at            timestamptz,
    failing_since          timestamptz,
    failing_noted_at       timestamptz,
    PRIMARY KEY (account_id, id),
    CHECK ((previous_secret_sealed IS NULL) = (previous_until IS NULL)),
    CHECK ((headers_sealed IS NULL) = (cardinality(header_names) = 0))
) WITH (fillfactor = 50)
"""

# Beside `events`, whose readers know three types: bodies as endpoints get them, and events of the further types.
EVENTS = """
CREATE TABLE endpoint_events (
    account_id uuid NOT NULL,
    id         uuid NOT NULL,
    message_id uuid,
    position   smallint,
    type       text NOT NULL,
    created_at timestamptz NOT NULL,
    body       bytea NOT NULL,
    PRIMARY KEY (account_id, id)
) PARTITION BY RANGE (id);
CREATE INDEX endpoint_events_message ON endpoint_events (account_id, message_id, id) WHERE message_id IS NOT NULL
"""

DAYS = """
DO $$
DECLARE
    day record;
BEGIN
    FOR day IN
        SELECT substring(child.relname FROM 8) AS name, pg_get_expr(child.relpartbound, child.oid) AS bounds
        FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
        WHERE inhparent = CAST('events' AS regclass) AND NOT inhdetachpending
          AND child.relname ~ '^events_[0-9]{8}$'
    LOOP
        EXECUTE 'CREATE TABLE endpoint_events_' || day.name || ' PARTITION OF endpoint_events ' || day.bounds;
    END LOOP;
END $$
"""

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
          AND pg_get_constraintdef(held.oid) ~ 'webhook\\.test'
          AND (held.conrelid = 'webhook_deliveries'::regclass OR held.conrelid IN (
            SELECT inhrelid FROM pg_inherits WHERE inhparent = 'webhook_deliveries'::regclass))
        ORDER BY held.conrelid <> 'webhook_deliveries'::regclass
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT IF EXISTS %I', found.part, found.name);
    END LOOP;
END $$
"""

# Null: a delivery to the account's webhook. Not validated: what is stored passed the stricter check.
DELIVERIES = """
ALTER TABLE webhook_deliveries
    ADD COLUMN endpoint_id uuid,
    ADD CONSTRAINT webhook_deliveries_about_mail
        CHECK (endpoint_id IS NOT NULL OR (message_id IS NULL) = (type = 'webhook.test')) NOT VALID
"""

# A worker of the version before would send an endpoint's events to the account's webhook: while one lives, no endpoint
# is created.
OTHERS = (
    "ALTER TABLE calls ADD COLUMN endpoint_id uuid",
    "ALTER TABLE workers ADD COLUMN knows_endpoints boolean NOT NULL DEFAULT false",
)


def upgrade() -> None:
    op.execute(ENDPOINTS)
    for statement in EVENTS.split(";\n"):
        op.execute(statement)
    for statement in (DAYS, DROP, DELIVERIES, *OTHERS):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
