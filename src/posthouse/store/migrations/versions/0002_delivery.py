"""Delivery: attempts, events, suppressed addresses, and who works on what."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# An attempt is one SMTP try, written down before it is made: its fence is the one that the claim took.
# One without an outcome is under way, or its worker died. What a remote server said is kept as it is;
# the checks are on what we say.
LARGE = """
CREATE TABLE attempts (
    account_id   uuid NOT NULL,
    message_id   uuid NOT NULL,
    position     smallint NOT NULL,
    fence        integer NOT NULL CHECK (fence > 0),
    worker_id    uuid NOT NULL,
    started_at   timestamptz NOT NULL,
    finished_at  timestamptz,
    outcome      text CHECK (outcome IN ('delivered', 'bounced', 'failed', 'deferred', 'postponed')),
    is_ambiguous boolean NOT NULL DEFAULT false,
    exchange     text,
    address      text,
    tls          text,
    stage        text,
    code         smallint,
    response     text,
    PRIMARY KEY (account_id, message_id, position, fence),
    CHECK ((finished_at IS NULL) = (outcome IS NULL)),
    CHECK (NOT is_ambiguous OR outcome IN ('failed', 'deferred'))
) PARTITION BY RANGE (message_id);

CREATE TABLE events (
    account_id uuid NOT NULL,
    id         uuid NOT NULL,
    message_id uuid,
    position   smallint,
    type       text NOT NULL
               CHECK (type IN ('email.delivered', 'email.bounced', 'email.failed', 'webhook.test')),
    created_at timestamptz NOT NULL,
    body       bytea NOT NULL,
    PRIMARY KEY (account_id, id),
    CHECK ((message_id IS NULL) = (type = 'webhook.test')),
    CHECK ((message_id IS NULL) = (position IS NULL))
) PARTITION BY RANGE (id)
"""

# Mail that waits from before this migration needs a place for its attempts, on its own days.
DAYS = """
DO $$
DECLARE
    day record;
    large text;
BEGIN
    FOR day IN
        SELECT substring(child.relname FROM 12) AS name, pg_get_expr(child.relpartbound, child.oid) AS bounds
        FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
        WHERE inhparent = CAST('recipients' AS regclass) AND NOT inhdetachpending
    LOOP
        FOREACH large IN ARRAY ARRAY['attempts', 'events'] LOOP
            EXECUTE 'CREATE TABLE ' || large || '_' || day.name || ' PARTITION OF ' || large || ' ' || day.bounds
                || CASE large WHEN 'attempts' THEN ' WITH (fillfactor = 50)' ELSE '' END;
        END LOOP;
    END LOOP;
END $$
"""

SMALL = """
CREATE TABLE suppressions (
    account_id uuid NOT NULL,
    email      text NOT NULL CHECK (email = lower(email)),
    reason     text NOT NULL CHECK (reason IN ('bounce', 'complaint')),
    code       smallint,
    response   text,
    at         timestamptz NOT NULL,
    PRIMARY KEY (account_id, email)
);

-- One lease a process, which all of its claims stand on: one row to renew, however many it works on.
CREATE TABLE workers (
    id         uuid PRIMARY KEY,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50)
"""

# attempt_count counts at the claim, so that attempts which no worker lived to report count as well.
# held is how long the recipient was held back so far, held_since when the present hold began: time
# that its account was suspended is no part of the time that it may take.
SCHEDULE = """
ALTER TABLE schedule
    ADD COLUMN worker_id     uuid,
    ADD COLUMN attempt_count smallint NOT NULL DEFAULT 0,
    ADD COLUMN held_since    timestamptz,
    ADD COLUMN held          interval NOT NULL DEFAULT '0',
    ADD CHECK (attempt_count BETWEEN 0 AND fence),
    ADD CHECK (held >= '0'),
    ADD CHECK (worker_id IS NULL OR held_since IS NULL);
CREATE INDEX schedule_worker_id ON schedule (worker_id) WHERE worker_id IS NOT NULL
"""


def upgrade() -> None:
    for statements in (LARGE, SMALL, SCHEDULE):
        for statement in statements.split(";\n"):
            op.execute(statement)
    op.execute(DAYS)


def downgrade() -> None:
    raise NotImplementedError("attempts and events are a record of what was done; restore a backup instead")
