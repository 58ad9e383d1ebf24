-- The installation: its time, its sending addresses, the learned limits of lanes, and the operators' log.

-- Service time, noted by the processes: a new process continues it even if the database's clock has stepped.
CREATE TABLE service_clock (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    service_time    timestamptz,
    noted_at        timestamptz,
    acceptances     integer NOT NULL DEFAULT 0
);
INSERT INTO service_clock DEFAULT VALUES;

-- The cluster and timeline of PostgreSQL on which the schedule is trusted; another timeline may be that of a restored
-- database.
CREATE TABLE restore_state (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    trusted         text,
    -- Another timeline, which was found at `doubted_at`, when service time had last been noted at `known_until`.
    doubted         text,
    doubted_at      timestamptz,
    known_until     timestamptz,
    -- When the last restore was noticed; the database contained everything up to `restored_to`.
    restored_at     timestamptz,
    restored_to     timestamptz
);
INSERT INTO restore_state (trusted)
SELECT system_identifier::text || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system();

-- When maintenance last ran, and when a backup was last noted.
CREATE TABLE task_runs (
    name text PRIMARY KEY,
    at   timestamptz NOT NULL
);

-- External mail services that take mail where none of our addresses may send it.
CREATE TABLE relays (
    name            text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,39}$'),
    host            text NOT NULL,
    port            integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    username        text NOT NULL,
    password_sealed bytea NOT NULL,
    per_second      double precision NOT NULL CHECK (per_second > 0),
    per_day         integer CHECK (per_day > 0),
    created_at      timestamptz NOT NULL
);

-- Sending addresses that share their mail.
CREATE TABLE pools (
    name       text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,39}$'),
    -- Accounts of this tier use the pool, unless they have their own.
    tier       text UNIQUE CHECK (tier IN ('new', 'good', 'watched')),
    overflow   text REFERENCES pools CHECK (overflow <> name),
    relay      text REFERENCES relays,
    created_at timestamptz NOT NULL
);

-- A retired address keeps its row: attempts name it.
CREATE TABLE sending_addresses (
    ip             inet PRIMARY KEY CHECK (masklen(ip) = CASE family(ip) WHEN 4 THEN 32 ELSE 128 END),
    hostname       text NOT NULL,
    pool           text NOT NULL REFERENCES pools,
    state          text NOT NULL CHECK (state IN ('active', 'resting', 'retired')),
    -- Null: the address needs no warm-up.
    warms_up_since timestamptz,
    created_at     timestamptz NOT NULL,
    changed_at     timestamptz NOT NULL,
    checked_at     timestamptz,
    findings       text[] NOT NULL DEFAULT '{}'
);

-- What DNS lists say about our addresses: a row exists while the list contains the address.
CREATE TABLE blocklist_entries (
    ip      inet NOT NULL REFERENCES sending_addresses,
    zone    text NOT NULL,
    answer  text NOT NULL,
    since   timestamptz NOT NULL,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (ip, zone)
);

-- The learned limits of lanes. Few rows, and few changes: a lane that has learnt nothing has none. The address is empty
-- in an installation with only one.
CREATE TABLE learned_limits (
    ip         text NOT NULL,
    lane       text NOT NULL,
    limits     jsonb NOT NULL,
    version    bigint NOT NULL,
    changed_at timestamptz NOT NULL,
    PRIMARY KEY (ip, lane)
);
CREATE INDEX learned_limits_changed ON learned_limits (changed_at);

-- Each change of a lane's learned limits, with the reply that caused it.
CREATE TABLE limit_changes (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    ip         text NOT NULL,
    lane       text NOT NULL,
    kind       text NOT NULL,
    scope      text NOT NULL,
    before     jsonb NOT NULL,
    after      jsonb NOT NULL,
    until      timestamptz,
    cause      text NOT NULL,
    reply      text NOT NULL,
    message_id uuid
);
CREATE INDEX limit_changes_of_lane ON limit_changes (lane, id);
CREATE INDEX limit_changes_at ON limit_changes (at);

-- How much an address in its warm-up may send in a lane on a day, and how much a relay takes: a relay's lane has no
-- address.
CREATE TABLE address_quotas (
    ip              text NOT NULL,
    lane            text NOT NULL,
    day             date NOT NULL,
    hour            smallint NOT NULL,
    granted         integer NOT NULL DEFAULT 0,
    granted_this_hour integer NOT NULL DEFAULT 0,
    accepted        integer NOT NULL DEFAULT 0,
    slowed          integer NOT NULL DEFAULT 0,
    was_blocked     boolean NOT NULL DEFAULT false,
    warm_up         jsonb,
    PRIMARY KEY (ip, lane)
);
CREATE INDEX address_quotas_day ON address_quotas (day);

-- What workers report about their lanes, for operators to watch. Unlogged, since it is written every two seconds and is
-- useless after a crash. No index but the key, so that a report changes its rows in place.
CREATE UNLOGGED TABLE lane_reports (
    worker_id       uuid NOT NULL,
    lane            text NOT NULL,
    waiting         integer NOT NULL,
    in_flight       integer NOT NULL,
    connections     integer NOT NULL,
    delivered_total bigint NOT NULL,
    deferred_total  bigint NOT NULL,
    paused_until    timestamptz,
    last_reply      text,
    reported_at     timestamptz NOT NULL,
    PRIMARY KEY (worker_id, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Lanes that operators have paused.
CREATE TABLE lane_pauses (
    lane   text PRIMARY KEY,
    since  timestamptz NOT NULL,
    reason text NOT NULL
);

-- Mail that a server refused because of our address, and that left over another one. Few rows: the bounds of reroutes
-- are counted here.
CREATE TABLE reroutes (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    lane       text NOT NULL,
    from_ip    text NOT NULL,
    to_ip      text NOT NULL,
    account_id uuid NOT NULL,
    message_id uuid NOT NULL,
    position   smallint NOT NULL
);
CREATE INDEX reroutes_of_lane ON reroutes (lane, at);
CREATE INDEX reroutes_of_message ON reroutes (account_id, message_id);
CREATE INDEX reroutes_at ON reroutes (at);

-- How long mail to each mailbox provider takes, as a histogram, and the delays that this shows.
CREATE TABLE provider_hours (
    provider         text NOT NULL,
    hour             timestamptz NOT NULL,
    delivered_counts bigint[] NOT NULL,
    PRIMARY KEY (provider, hour)
) WITH (fillfactor = 70);

CREATE TABLE provider_delays (
    provider         text PRIMARY KEY,
    since            timestamptz NOT NULL,
    p95_seconds      double precision NOT NULL,
    week_p95_seconds double precision NOT NULL
);

-- Changes that operators made to the installation itself; their changes in an account are in its audit log.
CREATE TABLE operator_log (
    id     uuid PRIMARY KEY,
    at     timestamptz NOT NULL,
    actor  text NOT NULL,
    action text NOT NULL,
    target text NOT NULL,
    detail jsonb NOT NULL
);
