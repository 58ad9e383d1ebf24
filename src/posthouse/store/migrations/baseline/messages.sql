-- Accepted messages and their delivery. The tables that grow with the mail have a partition a day, by the time in the
-- message's id, and no foreign keys between them; `store/partitions` makes and drops the days.

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
    -- Pairs of its sender, as JSON text; null without any.
    metadata         json,
    template         text,
    -- The list that it was sent to, by its tag.
    mailing_list     text,
    one_click        boolean NOT NULL DEFAULT false,
    recipient_count  smallint NOT NULL CHECK (recipient_count BETWEEN 1 AND 50),
    credits_reserved smallint NOT NULL CHECK (credits_reserved IN (0, recipient_count)),
    open_count       smallint NOT NULL,
    delivered_count  smallint NOT NULL DEFAULT 0,
    released_count   smallint NOT NULL DEFAULT 0,
    created_at       timestamptz NOT NULL,
    send_at          timestamptz,
    -- `resent_as` of the old message and `resent_from` of the new one are set in the transaction that accepts the new
    -- one.
    resent_from      uuid,
    resent_as        uuid,
    -- Null: its content is kept.
    forgets_content  boolean,
    -- Of a sampled mail, the context that its delivery and its webhooks continue.
    trace            bytea,
    PRIMARY KEY (account_id, id),
    CHECK (open_count >= 0 AND delivered_count >= 0 AND released_count >= 0),
    CHECK (open_count + delivered_count + released_count <= recipient_count),
    CHECK ((open_count > 0) = (status = 'queued')),
    CHECK ((open_count > 0) = (billing_status = 'reserved')),
    CHECK (NOT one_click OR mailing_list IS NOT NULL)
) PARTITION BY RANGE (id);

-- A cancelled recipient was taken back by its sender before it was tried.
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

-- Leads upkeep to bodies that are deleted once their message is final.
CREATE TABLE contents_to_forget (
    account_id uuid,
    message_id uuid,
    PRIMARY KEY (account_id, message_id)
);

-- One row reserves for the whole message (position -1), one closes each recipient: the key makes a second reserve and
-- a second close impossible.
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

-- The sums of a dropped day of the ledger, so that an account's sums stay whole for ever.
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

-- One lease a process, which all of its claims stand on: one row to renew, whatever the number of its claims.
CREATE TABLE workers (
    id              uuid PRIMARY KEY,
    expires_at      timestamptz NOT NULL,
    -- A worker that does not would send an endpoint's events to the account's webhook: while one lives, no endpoint is
    -- created.
    knows_endpoints boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

-- Recipients that are not final: when each is next to be tried, and the fence that its claim must know. It has all that
-- decides about a recipient, so that no other table is needed.
CREATE TABLE schedule (
    account_id     uuid NOT NULL,
    message_id     uuid NOT NULL,
    position       smallint NOT NULL,
    destination    text NOT NULL,
    -- The domain in From.
    sender         text,
    -- Null is no.
    is_list        boolean,
    send_at        timestamptz,
    next_at        timestamptz NOT NULL,
    fence          integer NOT NULL DEFAULT 0,
    worker_id      uuid,
    -- Counted at the claim, so that attempts that no worker lived to report count as well.
    attempt_count  smallint NOT NULL DEFAULT 0,
    -- The address of the last attempt, if the next must leave from there again.
    source         text,
    -- How long the recipient has been held so far, and when the present hold began: the time that its account was
    -- suspended is no part of the time that it may take.
    held           interval NOT NULL DEFAULT '0' CHECK (held >= '0'),
    held_since     timestamptz,
    -- 'operator', or the lane that is paused; without it the account is suspended, or mail is captured.
    held_by        text,
    -- When mail that an operator holds would be due, and how long operators kept it from being sent.
    due_at         timestamptz,
    paused         interval NOT NULL DEFAULT '0',
    -- Mail that a block of our address holds: when it bounces, and the first reply. It leaves only from `source`.
    bounce_at      timestamptz,
    first_code     smallint,
    first_response text,
    PRIMARY KEY (account_id, message_id, position),
    CHECK (attempt_count BETWEEN 0 AND fence),
    CHECK (worker_id IS NULL OR held_since IS NULL),
    CHECK ((bounce_at IS NULL) = (first_code IS NULL) AND (bounce_at IS NULL) = (first_response IS NULL))
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX schedule_next_at ON schedule (next_at);
CREATE INDEX schedule_worker_id ON schedule (worker_id) WHERE worker_id IS NOT NULL;
-- Held recipients are counted without a search. Empty but for mail of suspended accounts and paused lanes.
CREATE INDEX schedule_held_since ON schedule (held_since) WHERE held_since IS NOT NULL;

-- An attempt is one SMTP try, written down before it is made: its fence is the one that the claim took. One without an
-- outcome is under way, or its worker died. What a remote server said is kept as it is; the checks are on what we say.
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
    exchange     text,
    address      text,
    tls          text,
    stage        text,
    code         smallint,
    response     text,
    -- Our address, the relay that took the mail, and what the reply says about us.
    source       text,
    relay        text,
    remark       text,
    PRIMARY KEY (account_id, message_id, position, fence),
    CHECK ((finished_at IS NULL) = (outcome IS NULL)),
    CHECK (NOT is_ambiguous OR outcome IN ('failed', 'deferred'))
) PARTITION BY RANGE (message_id);

-- Retries that a member asked for: how many of a message, and the rate of an account.
CREATE TABLE message_retries (
    account_id uuid NOT NULL REFERENCES accounts,
    message_id uuid NOT NULL,
    count      smallint NOT NULL CHECK (count > 0),
    last_at    timestamptz NOT NULL,
    PRIMARY KEY (account_id, message_id)
);
CREATE INDEX message_retries_last_at ON message_retries (last_at);

CREATE TABLE retry_rates (
    account_id uuid PRIMARY KEY REFERENCES accounts,
    full_at    timestamptz NOT NULL
);

-- Failed mail that becomes new messages, once each.
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
    waits_for    text,
    -- The last message that was examined.
    position     uuid NOT NULL,
    -- Counted up by each step, so that of two processes that made the same step only one can commit it.
    steps        integer NOT NULL DEFAULT 0,
    found        bigint NOT NULL DEFAULT 0,
    recipients   bigint NOT NULL DEFAULT 0,
    resent       bigint NOT NULL DEFAULT 0,
    without_body bigint NOT NULL DEFAULT 0,
    never        bigint NOT NULL DEFAULT 0,
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

-- The search index: a row says that the message has the term (rules/search.py). The key is all there is to it, in the
-- order in which a page is read.
CREATE TABLE catalogue (
    account_id uuid NOT NULL,
    term       bigint NOT NULL,
    message_id uuid NOT NULL,
    PRIMARY KEY (account_id, term, message_id)
) PARTITION BY RANGE (message_id);

CREATE TABLE catalogue_progress (
    is_the_only_row boolean PRIMARY KEY DEFAULT true CHECK (is_the_only_row),
    messages_to     uuid NOT NULL,
    events_to       uuid NOT NULL
) WITH (fillfactor = 50);
