-- Events, the URLs that they are sent to, the log of deliveries, and the schedule of pending deliveries.

-- Events in the form that the account's webhook gets.
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
) PARTITION BY RANGE (id);

-- In addition to `events`, whose readers know three types: bodies in the form that endpoints get, and events of the
-- further types.
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
CREATE INDEX endpoint_events_message ON endpoint_events (account_id, message_id, id) WHERE message_id IS NOT NULL;

-- The URLs that an account's events are sent to. The account's webhook is the endpoint whose id is the account's: it gets
-- the three events of `events`, as they are stored there. Up to ten others get the events that they ask for, with
-- filters, headers of their own, and a rotated secret that stays valid until `previous_until`. Empty filters let
-- everything through. A test event is sent on request, so it can't be subscribed to.
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
    -- Whether the URL answers, and whether the owners were notified that it fails.
    answered_at            timestamptz,
    failing_since          timestamptz,
    failing_noted_at       timestamptz,
    PRIMARY KEY (account_id, id),
    CHECK ((previous_secret_sealed IS NULL) = (previous_until IS NULL)),
    CHECK ((headers_sealed IS NULL) = (cardinality(header_names) = 0)),
    CONSTRAINT endpoints_webhook
        CHECK (id <> account_id OR (types <@ '{email.delivered,email.bounced,email.failed}'
            AND cardinality(sender_domains || tags) = 0 AND mode IS NULL AND headers_sealed IS NULL
            AND previous_until IS NULL))
) WITH (fillfactor = 50);

-- The body that is sent is the event's own, which is never copied. The answer to the last attempt is stored as it was
-- received; the checks are on our own values.
CREATE TABLE webhook_deliveries (
    account_id         uuid NOT NULL,
    id                 uuid NOT NULL,
    event_id           uuid NOT NULL,
    endpoint_id        uuid NOT NULL,
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
    -- Every failed attempt. In this row, so that a delivery that succeeds immediately costs nothing extra, and so that
    -- the log's retention applies to them too.
    failed_attempts    jsonb,
    replay_of          uuid,
    created_at         timestamptz NOT NULL,
    last_attempt_at    timestamptz,
    next_attempt_at    timestamptz,
    PRIMARY KEY (account_id, id),
    CHECK (attempt BETWEEN 0 AND max_attempts),
    CONSTRAINT webhook_deliveries_about_mail
        CHECK (endpoint_id <> account_id OR (message_id IS NULL) = (type = 'webhook.test')),
    CHECK ((message_id IS NULL) = (position IS NULL)),
    CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL)),
    CHECK (status <> 'succeeded' OR (http_status BETWEEN 200 AND 299 AND last_attempt_at IS NOT NULL))
) PARTITION BY RANGE (id);
CREATE INDEX webhook_deliveries_message ON webhook_deliveries (account_id, message_id, id)
    WHERE message_id IS NOT NULL;

-- The schedule of webhooks, like the schedule of mail and just as small: only pending deliveries. Its claims depend on
-- the same leases of workers.
CREATE TABLE webhook_schedule (
    account_id    uuid NOT NULL,
    id            uuid NOT NULL,
    event_id      uuid NOT NULL,
    endpoint_id   uuid NOT NULL,
    -- `next_at` moves with every lease, claim and postponement, `due_at` only with the schedule of attempts.
    next_at       timestamptz NOT NULL,
    due_at        timestamptz NOT NULL,
    fence         integer NOT NULL DEFAULT 0,
    worker_id     uuid,
    attempt_count smallint NOT NULL DEFAULT 0,
    max_attempts  smallint NOT NULL,
    trace         bytea,
    PRIMARY KEY (account_id, id),
    CHECK (attempt_count BETWEEN 0 AND fence),
    CHECK (attempt_count <= max_attempts)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX webhook_schedule_next_at ON webhook_schedule (next_at);
CREATE INDEX webhook_schedule_worker_id ON webhook_schedule (worker_id) WHERE worker_id IS NOT NULL;
