-- Accepted messages and their delivery. The tables that grow with the mail have a partition for each day, by the time
-- in the message's id, and no foreign keys between them; `store/partitions` creates and drops the days.

CREATE TABLE messages (
    account_id       uuid NOT NULL,
    id               uuid NOT NULL,
    credential_id    uuid NOT NULL,
    request_id       uuid NOT NULL,
    source           text NOT NULL CHECK (source IN ('smtp', 'api', 'test')),
    status           text NOT NULL DEFAULT 'queued'
                     CHECK (status IN ('queued', 'delivered', 'partial', 'failed')),
    billing_status   text NOT NULL DEFAULT 'reserved'
                     CHECK (billing_status IN ('reserved', 'settled', 'released')),
    sender           text NOT NULL,
    envelope_sender  text NOT NULL,
    subject          text NOT NULL,
    tags             text[],
    -- The sender's pairs, as JSON text; null without any.
    metadata         json,
    template         text,
    -- The list that the message was sent to, according to its tag.
    mailing_list     text,
    one_click        boolean NOT NULL DEFAULT false,
    recipient_count  smallint NOT NULL CHECK (recipient_count BETWEEN 1 AND 50),
    credits_reserved smallint NOT NULL CHECK (credits_reserved IN (0, recipient_count)),
    open_count       smallint NOT NULL,
    delivered_count  smallint NOT NULL DEFAULT 0,
    released_count   smallint NOT NULL DEFAULT 0,
    created_at       timestamptz NOT NULL,
    send_at          timestamptz,
    -- `resent_as` of the old message and `resent_from` of the new message are set in the transaction that accepts the
    -- new one.
    resent_from      uuid,
    resent_as        uuid,
    -- Null: the content is kept.
    forgets_content  boolean,
    -- For a sampled message, the trace context that its delivery and its webhooks continue.
    trace            bytea,
    PRIMARY KEY (account_id, id),
    CHECK (open_count >= 0 AND delivered_count >= 0 AND released_count >= 0),
    CHECK (open_count + delivered_count + released_count <= recipient_count),
    CHECK ((open_count > 0) = (status = 'queued')),
    CHECK ((open_count > 0) = (billing_status = 'reserved')),
    CHECK (NOT one_click OR mailing_list IS NOT NULL)
) PARTITION BY RANGE (id);

-- A cancelled recipient was cancelled by the sender before it was tried.
CREATE TABLE recipients (
    account_id         uuid NOT NULL,
    message_id         uuid NOT NULL,
    position           smallint NOT NULL,
    field              text NOT NULL CHECK (field IN ('to', 'cc', 'bcc')),
    email              text NOT NULL,
    status             text NOT NULL DEFAULT 'queued'
                       CHECK (status IN ('queued', 'deferred', 'delivered', 'bounced', 'failed', 'cancelled')),
    billing_status     text NOT NULL DEFAULT 'reserved',
    attempt_count      smallint NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    last_smtp_code     smallint,
    last_smtp_response text,
    delivered_at       timestamptz,
    bounced_at         timestamptz,
    failed_at          timestamptz,
    cancelled_at       timestamptz,
    PRIMARY KEY (account_id, message_id, position),
    CHECK ((status = 'delivered') = (delivered_at IS NOT NULL)),
    CHECK ((status = 'bounced') = (bounced_at IS NOT NULL)),
    CHECK ((status = 'failed') = (failed_at IS NOT NULL)),
    CONSTRAINT recipients_cancelled_check CHECK ((status = 'cancelled') = (cancelled_at IS NOT NULL)),
    CONSTRAINT recipients_billing_check CHECK (CASE
        WHEN status = 'delivered' THEN billing_status = 'settled'
        WHEN status = 'failed' THEN billing_status IN ('settled', 'released')
        WHEN status IN ('bounced', 'cancelled') THEN billing_status = 'released'
        ELSE billing_status = 'reserved' END)
) PARTITION BY RANGE (message_id);

-- Compressed with lz4 and kept in its row, where PostgreSQL has lz4 (decision record 0060).
CREATE TABLE bodies (
    account_id uuid NOT NULL,
    message_id uuid NOT NULL,
    mime       bytea NOT NULL,
    PRIMARY KEY (account_id, message_id)
) PARTITION BY RANGE (message_id);
ALTER TABLE bodies ALTER COLUMN mime SET STORAGE EXTERNAL;
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)) THEN
        ALTER TABLE bodies ALTER COLUMN mime SET STORAGE MAIN, ALTER COLUMN mime SET COMPRESSION lz4;
    END IF;
    END $$;

-- For maintenance to find bodies that are deleted once their message is final.
CREATE TABLE bodies_to_delete (
    account_id uuid,
    message_id uuid,
    PRIMARY KEY (account_id, message_id)
);

-- One row reserves credits for the whole message (position -1), and one closes each recipient: the key makes a second
-- reserve and a second close impossible.
CREATE TABLE ledger (
    account_id uuid NOT NULL,
    message_id uuid NOT NULL,
    position   smallint NOT NULL,
    kind       text NOT NULL,
    amount     smallint NOT NULL CHECK (amount > 0),
    at         timestamptz NOT NULL,
    PRIMARY KEY (account_id, message_id, position),
    CHECK (CASE WHEN position = -1 THEN kind = 'reserve'
                ELSE kind IN ('settle', 'release') AND amount = 1 END)
) PARTITION BY RANGE (message_id);

-- The sums of a dropped day of the ledger, so that an account's sums stay complete forever.
CREATE TABLE ledger_days (
    account_id uuid NOT NULL,
    day        date NOT NULL,
    reserved   bigint NOT NULL,
    settled    bigint NOT NULL,
    released   bigint NOT NULL,
    PRIMARY KEY (account_id, day)
);

CREATE TABLE idempotency (
    account_id    uuid NOT NULL,
    credential_id uuid NOT NULL,
    key           text NOT NULL,
    body_hash     bytea NOT NULL,
    message_id    uuid NOT NULL,
    expires_at    timestamptz NOT NULL,
    PRIMARY KEY (account_id, credential_id, key)
);
CREATE INDEX idempotency_expires_at ON idempotency (expires_at);

-- One lease for each process, on which all of its claims depend: one row to renew, however many claims it has.
CREATE TABLE workers (
    id         uuid PRIMARY KEY,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Recipients that are not final: when each is tried next, and the fence that its claim must know. The row contains
-- everything that decides about a recipient, so that no other table is needed.
CREATE TABLE delivery_schedule (
    account_id     uuid NOT NULL,
    message_id     uuid NOT NULL,
    position       smallint NOT NULL,
    destination    text NOT NULL,
    -- The domain in From.
    sender         text,
    -- Null means no.
    is_list        boolean,
    send_at        timestamptz,
    next_at        timestamptz NOT NULL,
    fence          integer NOT NULL DEFAULT 0,
    worker_id      uuid,
    -- Counted at the claim, so that attempts whose worker died before it reported count as well.
    attempt_count  smallint NOT NULL DEFAULT 0,
    -- The address of the last attempt, if the next one must leave from there again.
    source_ip      text,
    -- When the current hold began. How long the account was suspended is in `suspensions`.
    held_since     timestamptz,
    -- 'operator', or the paused lane; null if the account is suspended, or mail is captured.
    held_by        text,
    -- When mail that an operator holds would be due, and how long operators have held it.
    due_at         timestamptz,
    paused         interval NOT NULL DEFAULT '0',
    -- For mail that a block of our address holds: when it bounces, and the first reply. It leaves only from
    -- `source_ip`.
    bounce_at      timestamptz,
    first_code     smallint,
    first_response text,
    PRIMARY KEY (account_id, message_id, position),
    CHECK (attempt_count BETWEEN 0 AND fence),
    CHECK (worker_id IS NULL OR held_since IS NULL),
    CHECK ((bounce_at IS NULL) = (first_code IS NULL) AND (bounce_at IS NULL) = (first_response IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX delivery_schedule_next_at ON delivery_schedule (next_at);
CREATE INDEX delivery_schedule_worker_id ON delivery_schedule (worker_id) WHERE worker_id IS NOT NULL;
-- For counting held recipients. Empty except for mail of suspended accounts and paused lanes.
CREATE INDEX delivery_schedule_held_since ON delivery_schedule (held_since) WHERE held_since IS NOT NULL;

-- An attempt is one SMTP try, recorded before it is made: its fence is the one that the claim took. An attempt without
-- an outcome is under way, or its worker died. A remote server's reply is stored as it is; the checks are on our own
-- values.
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
    -- The server that was tried.
    mx_host      text,
    remote_ip    text,
    tls          text,
    stage        text,
    code         smallint,
    response     text,
    -- Our address, the relay that took the mail, and what the reply says about us.
    source_ip    text,
    relay        text,
    reply_signal text,
    PRIMARY KEY (account_id, message_id, position, fence),
    CHECK ((finished_at IS NULL) = (outcome IS NULL)),
    CHECK (NOT is_ambiguous OR outcome IN ('failed', 'deferred'))
) PARTITION BY RANGE (message_id);

-- Retries that a member asked for: how many for a message, and the rate of an account.
CREATE TABLE message_retries (
    account_id uuid NOT NULL REFERENCES accounts,
    message_id uuid NOT NULL,
    count      smallint NOT NULL CHECK (count > 0),
    last_at    timestamptz NOT NULL,
    PRIMARY KEY (account_id, message_id)
);
CREATE INDEX message_retries_last_at ON message_retries (last_at);

CREATE TABLE retry_limits (
    account_id uuid PRIMARY KEY REFERENCES accounts,
    full_at    timestamptz NOT NULL
);

-- Failed messages that are sent again as new messages, once each.
CREATE TABLE resends (
    account_id   uuid NOT NULL REFERENCES accounts,
    id           uuid NOT NULL,
    key          text NOT NULL,
    request_hash bytea NOT NULL,
    since        timestamptz NOT NULL,
    until        timestamptz NOT NULL,
    tag          text,
    metadata     json,
    destination  text,
    is_dry_run   boolean NOT NULL,
    status       text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'done', 'stopped')),
    waiting_for    text,
    -- The last message that was examined.
    position     uuid NOT NULL,
    -- Incremented by each step, so that of two processes that did the same step only one can commit it.
    steps        integer NOT NULL DEFAULT 0,
    matched      bigint NOT NULL DEFAULT 0,
    recipients   bigint NOT NULL DEFAULT 0,
    resent       bigint NOT NULL DEFAULT 0,
    without_body bigint NOT NULL DEFAULT 0,
    excluded     bigint NOT NULL DEFAULT 0,
    refused      bigint NOT NULL DEFAULT 0,
    next_at      timestamptz NOT NULL,
    created_at   timestamptz NOT NULL,
    finished_at  timestamptz,
    PRIMARY KEY (account_id, id),
    UNIQUE (account_id, key),
    CHECK ((status = 'running') = (finished_at IS NULL))
);
CREATE UNIQUE INDEX resends_running ON resends (account_id) WHERE status = 'running';
CREATE INDEX resends_due ON resends (next_at) WHERE status = 'running';
CREATE INDEX resends_finished ON resends (finished_at);

-- The search index: a row says that the message has the term (rules/search.py). A row is only its key, in the order in
-- which a page is read.
CREATE TABLE search_index (
    account_id uuid NOT NULL,
    term       bigint NOT NULL,
    message_id uuid NOT NULL,
    PRIMARY KEY (account_id, term, message_id)
) PARTITION BY RANGE (message_id);

CREATE TABLE search_index_progress (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    messages_to     uuid NOT NULL,
    events_to       uuid NOT NULL
) WITH (fillfactor = 50);
