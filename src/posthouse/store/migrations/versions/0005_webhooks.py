"""Webhooks: each account's endpoint, the log of what was sent to it, and the calendar of what is to be sent."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

# A test event is sent because someone asked for it, so nobody subscribes to it.
ENDPOINTS = """
CREATE TABLE webhook_endpoints (
    account_id    uuid PRIMARY KEY REFERENCES accounts,
    url           text NOT NULL,
    events        text[] NOT NULL
                  CHECK (cardinality(events) > 0 AND events <@ '{email.delivered,email.bounced,email.failed}'),
    enabled       boolean NOT NULL,
    secret_sealed bytea NOT NULL,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    pinged_at     timestamptz
) WITH (fillfactor = 50)
"""

# What is sent is the event's own body, which is never copied. The answer of the last attempt is kept as it came;
# the checks are on what we say.
DELIVERIES = """
CREATE TABLE webhook_deliveries (
    account_id         uuid NOT NULL,
    id                 uuid NOT NULL,
    event_id           uuid NOT NULL,
    type               text NOT NULL,
    message_id         uuid,
    position           smallint,
    url                text NOT NULL,
    status             text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'succeeded', 'failed')),
    attempt            smallint NOT NULL DEFAULT 0,
    max_attempts       smallint NOT NULL,
    http_status        smallint,
    error              text,
    duration_ms        integer,
    response_body      bytea CHECK (octet_length(response_body) <= 2048),
    response_truncated boolean NOT NULL DEFAULT false,
    replay_of          uuid,
    created_at         timestamptz NOT NULL,
    last_attempt_at    timestamptz,
    next_attempt_at    timestamptz,
    PRIMARY KEY (account_id, id),
    CHECK (attempt BETWEEN 0 AND max_attempts),
    CHECK ((message_id IS NULL) = (type = 'webhook.test')),
    CHECK ((message_id IS NULL) = (position IS NULL)),
    CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL)),
    CHECK (status <> 'succeeded' OR (http_status BETWEEN 200 AND 299 AND last_attempt_at IS NOT NULL))
) PARTITION BY RANGE (id);
CREATE INDEX webhook_deliveries_message ON webhook_deliveries (account_id, message_id, id)
    WHERE message_id IS NOT NULL
"""

# Like the calendar of mail, and as small: only what is pending. Its claims stand on the same workers' leases.
CALLS = """
CREATE TABLE calls (
    account_id    uuid NOT NULL,
    id            uuid NOT NULL,
    event_id      uuid NOT NULL,
    next_at       timestamptz NOT NULL,
    fence         integer NOT NULL DEFAULT 0,
    worker_id     uuid,
    attempt_count smallint NOT NULL DEFAULT 0,
    max_attempts  smallint NOT NULL,
    PRIMARY KEY (account_id, id),
    CHECK (attempt_count BETWEEN 0 AND fence),
    CHECK (attempt_count <= max_attempts)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX calls_next_at ON calls (next_at);
CREATE INDEX calls_worker_id ON calls (worker_id) WHERE worker_id IS NOT NULL
"""

# Mail that comes to its end before the next upkeep needs a place for what its account is told.
DAYS = """
DO $$
DECLARE
    day record;
BEGIN
    FOR day IN
        SELECT substring(child.relname FROM 8) AS name, pg_get_expr(child.relpartbound, child.oid) AS bounds
        FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
        WHERE inhparent = CAST('events' AS regclass) AND NOT inhdetachpending
    LOOP
        EXECUTE 'CREATE TABLE webhook_deliveries_' || day.name || ' PARTITION OF webhook_deliveries ' || day.bounds
            || ' WITH (fillfactor = 50)';
    END LOOP;
END $$
"""


def upgrade() -> None:
    for statements in (ENDPOINTS, DELIVERIES, CALLS):
        for statement in statements.split(";\n"):
            op.execute(statement)
    op.execute(DAYS)


def downgrade() -> None:
    raise NotImplementedError("endpoints, and what waits to be sent to them, would be lost; restore a backup instead")
