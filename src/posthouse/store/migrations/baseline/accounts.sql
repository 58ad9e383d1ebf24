-- Accounts and what belongs to them: credits, secrets, domains, templates and usage; users, their memberships and
-- sessions.

-- One row an account: who it is, and what every accepted message changes. The columns that change with each message
-- are in no index, so that their updates stay within the page (fillfactor).
CREATE TABLE accounts (
    id                 uuid PRIMARY KEY,
    -- The operator's name for the account, which is unique and which commands take; its owners choose `display_name`.
    name               text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    display_name       text,
    created_at         timestamptz NOT NULL,
    -- Moves with every change of the account's rows in the control cache.
    changed_at         timestamptz NOT NULL,
    suspended_at       timestamptz,
    suspended_reason   text,
    -- An account that an operator closed is suspended, and has no credentials and members.
    closed_at          timestamptz,
    requires_totp      boolean NOT NULL DEFAULT false,
    -- Null: the pool of the account's tier.
    pool               text REFERENCES pools,
    -- What is known about its reputation; maintenance changes it.
    tier               text NOT NULL DEFAULT 'new' CHECK (tier IN ('new', 'good', 'watched')),
    -- Credits that the account can still spend.
    available          bigint NOT NULL DEFAULT 0 CHECK (available >= 0),
    -- Null: the service's default limits.
    rate_per_second    integer CHECK (rate_per_second > 0),
    rate_burst         integer CHECK (rate_burst > 0),
    rate_full_at       timestamptz NOT NULL DEFAULT 'epoch',
    recipients_full_at timestamptz NOT NULL DEFAULT 'epoch',
    warmup_exempt      boolean NOT NULL DEFAULT false,
    warmup_limits      integer[],
    warmup_started_on  date,
    warmup_day         date,
    warmup_used        integer NOT NULL DEFAULT 0 CHECK (warmup_used >= 0),
    -- The recipients accepted for future days: {"2026-11-20": 40}.
    warmup_ahead       jsonb,
    -- Bytes of live mail, and of test mail, that were stored on `stored_on`.
    stored_on          date,
    stored_bytes       bigint NOT NULL DEFAULT 0,
    stored_test_bytes  bigint NOT NULL DEFAULT 0,
    -- Reputation counts reports since then: an operator who lifts a suspension resets the count.
    reputation_since      timestamptz,
    reputation_exempt     boolean NOT NULL DEFAULT false,
    reputation_warned_at  timestamptz,
    CHECK ((suspended_at IS NULL) = (suspended_reason IS NULL)),
    CONSTRAINT accounts_closed_is_suspended CHECK (closed_at IS NULL OR suspended_at IS NOT NULL)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX accounts_name ON accounts (lower(name));
CREATE INDEX accounts_changed_at ON accounts (changed_at);
CREATE INDEX accounts_pool ON accounts (pool) WHERE pool IS NOT NULL;
-- A return path names an account by the end of its id, which is random.
CREATE INDEX accounts_tail ON accounts (substring(uuid_send(id) FROM 13));

-- When accounts were suspended: that time does not count towards the lifetime of their mail.
CREATE TABLE suspensions (
    account_id uuid NOT NULL REFERENCES accounts,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz,
    PRIMARY KEY (account_id, started_at),
    CHECK (ended_at >= started_at)
);

-- Credits that operators granted or took. `key` is the request's, so that a repeated request grants nothing more; null:
-- granted on the command line.
CREATE TABLE credit_grants (
    account_id uuid NOT NULL REFERENCES accounts,
    id         uuid NOT NULL,
    amount     bigint NOT NULL CHECK (amount <> 0),
    reason     text NOT NULL,
    at         timestamptz NOT NULL,
    key        text,
    PRIMARY KEY (account_id, id)
);
CREATE UNIQUE INDEX credit_grants_key ON credit_grants (account_id, key) WHERE key IS NOT NULL;

-- SMTP usernames and passwords.
CREATE TABLE credentials (
    account_id       uuid NOT NULL REFERENCES accounts,
    id               uuid NOT NULL,
    username         text NOT NULL UNIQUE,
    secret_hash      bytea NOT NULL,
    -- A rotated password works until then.
    previous_hash    bytea,
    previous_until   timestamptz,
    name             text NOT NULL,
    is_default       boolean NOT NULL DEFAULT false,
    allowed_networks cidr[] NOT NULL DEFAULT '{}',
    created_at       timestamptz NOT NULL,
    revoked_at       timestamptz,
    -- In no index, so that an update stays within the page.
    last_used_at     timestamptz,
    last_used_from   text,
    PRIMARY KEY (account_id, id),
    CHECK ((previous_hash IS NULL) = (previous_until IS NULL))
);
CREATE UNIQUE INDEX credentials_default ON credentials (account_id) WHERE is_default;
-- Live credentials and keys are counted while the account's row is locked; any number of others may have ended.
CREATE INDEX credentials_live ON credentials (account_id, id) WHERE revoked_at IS NULL;

-- `may_send` and `may_read` are the first two scopes; the others are in `other_scopes`. Empty `sender_domains`: any.
CREATE TABLE api_keys (
    account_id       uuid NOT NULL,
    id               uuid NOT NULL,
    credential_id    uuid NOT NULL,
    secret_hash      bytea NOT NULL UNIQUE,
    hint             text NOT NULL,
    name             text NOT NULL,
    mode             text NOT NULL CHECK (mode IN ('live', 'test')),
    may_send         boolean NOT NULL DEFAULT true,
    may_read         boolean NOT NULL DEFAULT false,
    other_scopes     text[] NOT NULL DEFAULT '{}',
    sender_domains   text[] NOT NULL DEFAULT '{}',
    allowed_networks cidr[] NOT NULL DEFAULT '{}',
    created_at       timestamptz NOT NULL,
    expires_at       timestamptz,
    revoked_at       timestamptz,
    replaced_by      uuid,
    last_used_at     timestamptz,
    last_used_from   text,
    PRIMARY KEY (account_id, id),
    FOREIGN KEY (account_id, credential_id) REFERENCES credentials,
    CHECK (may_send OR may_read OR cardinality(other_scopes) > 0)
);
CREATE INDEX api_keys_live ON api_keys (account_id, coalesce(expires_at, 'infinity')) WHERE revoked_at IS NULL;
CREATE INDEX api_keys_ended ON api_keys (least(revoked_at, expires_at)) WHERE least(revoked_at, expires_at) IS NOT NULL;

-- One-time links to the page of captured mail, and the sessions that they open.
CREATE TABLE captured_mail_secrets (
    secret_hash bytea PRIMARY KEY,
    account_id  uuid NOT NULL REFERENCES accounts,
    is_link     boolean NOT NULL,
    expires_at  timestamptz NOT NULL
);

-- Domains that an account sends from, with the keys that sign its mail.
CREATE TABLE domains (
    account_id        uuid NOT NULL REFERENCES accounts,
    id                uuid NOT NULL,
    name              text NOT NULL CHECK (name = lower(name)),
    -- The account whose keys sign the mail; null for the account's own domain.
    shared_from       uuid,
    token             text NOT NULL,
    selector          text NOT NULL,
    dkim_public       text NOT NULL,
    dkim_sealed       bytea NOT NULL,
    -- The second key also signs once its record is published, according to the last check of DNS or to an operator
    -- who vouched for it. Null for a domain with another account's keys.
    ed25519_selector  text,
    ed25519_public    text,
    ed25519_sealed    bytea,
    ed25519_published boolean NOT NULL DEFAULT false,
    created_at        timestamptz NOT NULL,
    verified_at       timestamptz,
    missing_since     timestamptz,
    checked_at        timestamptz,
    -- When someone last asked for a check.
    asked_at          timestamptz,
    -- What the last check found about each record, and who hosts the DNS.
    findings          json,
    dns_host          text,
    PRIMARY KEY (account_id, id),
    UNIQUE (account_id, name),
    CHECK (missing_since IS NULL OR verified_at IS NOT NULL),
    CHECK (num_nulls(ed25519_selector, ed25519_public, ed25519_sealed) IN (0, 3)),
    CHECK (NOT ed25519_published OR ed25519_sealed IS NOT NULL)
);
CREATE INDEX domains_checked_at ON domains (checked_at) WHERE verified_at IS NOT NULL;
CREATE INDEX domains_shared ON domains (name) WHERE shared_from IS NOT NULL;

-- Keys whose records have not been seen yet, at most one pair for a domain, and keys that signed before the current
-- ones, as long as mail with their signatures may be in transit: for these the public half is enough.
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

CREATE TABLE templates (
    account_id        uuid NOT NULL REFERENCES accounts,
    alias             text NOT NULL CHECK (alias ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    former_alias      text,
    name              text NOT NULL,
    published_version integer,
    latest_version    integer NOT NULL CHECK (latest_version > 0),
    -- The bytes of all its versions, for the limit on an account's templates.
    size_bytes        bigint NOT NULL DEFAULT 0 CHECK (size_bytes >= 0),
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    PRIMARY KEY (account_id, alias),
    CHECK (published_version BETWEEN 1 AND latest_version)
);

-- Renaming the template renames its versions.
CREATE TABLE template_versions (
    account_id uuid NOT NULL,
    alias      text NOT NULL,
    version    integer NOT NULL CHECK (version > 0),
    engine     text NOT NULL DEFAULT 'plain' CHECK (engine IN ('plain', 'handlebars')),
    subject    text,
    text       text,
    html       text,
    size_bytes integer NOT NULL DEFAULT 0,
    author     text NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (account_id, alias, version),
    FOREIGN KEY (account_id, alias) REFERENCES templates ON DELETE CASCADE ON UPDATE CASCADE,
    CHECK (text IS NOT NULL OR html IS NOT NULL)
);

CREATE TABLE users (
    id              uuid PRIMARY KEY,
    email           text NOT NULL UNIQUE CHECK (email = lower(email)),
    password_hash   text NOT NULL,
    created_at      timestamptz NOT NULL,
    -- The account that the user opened last.
    last_account_id uuid,
    -- Since when the user may use the operator's routes and pages; only the command line sets it.
    operator_since  timestamptz
);

CREATE TABLE memberships (
    account_id   uuid NOT NULL REFERENCES accounts,
    user_id      uuid NOT NULL REFERENCES users,
    role         text NOT NULL CHECK (role IN ('owner', 'admin', 'member', 'viewer')),
    created_at   timestamptz NOT NULL,
    last_seen_at timestamptz,
    PRIMARY KEY (account_id, user_id)
);
CREATE INDEX memberships_user ON memberships (user_id);

-- Open invitations: accepting one deletes its row.
CREATE TABLE invitations (
    account_id uuid NOT NULL REFERENCES accounts,
    id         uuid NOT NULL,
    email      text NOT NULL CHECK (email = lower(email)),
    role       text NOT NULL CHECK (role IN ('owner', 'admin', 'member', 'viewer')),
    token_hash bytea NOT NULL UNIQUE,
    inviter_id uuid REFERENCES users,
    inviter    text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (account_id, id),
    UNIQUE (account_id, email)
);
CREATE INDEX invitations_expires_at ON invitations (expires_at);

-- Logins of users, each for one account at a time.
CREATE TABLE sessions (
    id                  uuid PRIMARY KEY,
    user_id             uuid NOT NULL REFERENCES users,
    account_id          uuid NOT NULL REFERENCES accounts,
    created_at          timestamptz NOT NULL,
    expires_at          timestamptz NOT NULL CHECK (expires_at > created_at),
    revoked_at          timestamptz,
    -- Where the session began.
    peer                text NOT NULL DEFAULT '',
    user_agent          text NOT NULL DEFAULT '',
    -- Null: the session ends with its token, and no cookie renews it.
    renewal_hash        bytea,
    renewal_hash_before bytea,
    renewal_salt        bytea,
    renewed_at          timestamptz
);
CREATE INDEX sessions_user ON sessions (user_id, id);
CREATE INDEX sessions_expires_at ON sessions (expires_at);
CREATE UNIQUE INDEX sessions_renewal ON sessions (renewal_hash) WHERE renewal_hash IS NOT NULL;
CREATE UNIQUE INDEX sessions_renewal_before ON sessions (renewal_hash_before) WHERE renewal_hash_before IS NOT NULL;

-- Links that log a user in once.
CREATE TABLE login_links (
    token_hash bytea PRIMARY KEY,
    user_id    uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    expires_at timestamptz NOT NULL
);

-- Where a user has logged in from: the network and the family of the program.
CREATE TABLE known_login_locations (
    user_id     uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    network     text NOT NULL,
    program     text NOT NULL,
    last_at     timestamptz NOT NULL,
    notified_at timestamptz,
    PRIMARY KEY (user_id, network, program)
);

-- How often a person from a network, or a user's codes, failed, and until when further tries are blocked.
CREATE TABLE login_failures (
    subject       text PRIMARY KEY,
    count         integer NOT NULL CHECK (count > 0),
    blocked_until timestamptz NOT NULL
);

CREATE TABLE password_resets (
    user_id    uuid PRIMARY KEY REFERENCES users,
    token_hash bytea NOT NULL UNIQUE,
    expires_at timestamptz NOT NULL
);

-- The last used step is stored, so that a code that someone saw being typed is useless.
CREATE TABLE second_factors (
    user_id       uuid PRIMARY KEY REFERENCES users,
    secret_sealed bytea NOT NULL,
    created_at    timestamptz NOT NULL,
    confirmed_at  timestamptz,
    last_step     bigint NOT NULL DEFAULT 0
);

CREATE TABLE recovery_codes (
    user_id   uuid NOT NULL REFERENCES users,
    code_hash bytea NOT NULL,
    PRIMARY KEY (user_id, code_hash)
);

-- Who changed what in an account.
CREATE TABLE audit_log (
    account_id uuid NOT NULL REFERENCES accounts,
    id         uuid NOT NULL,
    at         timestamptz NOT NULL,
    user_id    uuid,
    actor      text NOT NULL,
    action     text NOT NULL,
    target     text NOT NULL,
    detail     jsonb NOT NULL,
    PRIMARY KEY (account_id, id)
);
CREATE INDEX audit_log_at ON audit_log (at);
-- For reading the operators' entries in all accounts together.
CREATE INDEX audit_log_of_operators ON audit_log (id) WHERE user_id IS NULL AND actor = 'operator';

-- Alerts that members chose, what they are raised for, and the notices to send. When a member leaves, or an alert is no
-- longer chosen, all of its rows are deleted.
CREATE TABLE alerts (
    account_id uuid NOT NULL,
    user_id    uuid NOT NULL,
    kind       text NOT NULL,
    threshold  double precision NOT NULL,
    PRIMARY KEY (account_id, user_id, kind),
    FOREIGN KEY (account_id, user_id) REFERENCES memberships ON DELETE CASCADE
);

CREATE TABLE alert_states (
    account_id uuid NOT NULL,
    user_id    uuid NOT NULL,
    kind       text NOT NULL,
    subject    text NOT NULL,
    label      text NOT NULL,
    raised_at  timestamptz NOT NULL,
    PRIMARY KEY (account_id, user_id, kind, subject),
    FOREIGN KEY (account_id, user_id, kind) REFERENCES alerts ON DELETE CASCADE
);

CREATE TABLE alert_notices (
    id         uuid PRIMARY KEY,
    account_id uuid NOT NULL,
    user_id    uuid NOT NULL,
    kind       text NOT NULL,
    is_raised  boolean NOT NULL,
    label      text NOT NULL,
    value      double precision,
    threshold  double precision NOT NULL,
    at         timestamptz NOT NULL,
    tried_at   timestamptz,
    FOREIGN KEY (account_id, user_id, kind) REFERENCES alerts ON DELETE CASCADE
);
CREATE INDEX alert_notices_alert ON alert_notices (account_id, user_id, kind);

-- Mail accepted on a day and its results since, kept forever. A row is updated a few times a minute while the day's
-- mail is not final.
CREATE TABLE usage_days (
    account_id     uuid NOT NULL,
    day            date NOT NULL,
    accepted       bigint NOT NULL DEFAULT 0 CHECK (accepted >= 0),
    delivered      bigint NOT NULL DEFAULT 0 CHECK (delivered >= 0),
    bounced        bigint NOT NULL DEFAULT 0 CHECK (bounced >= 0),
    failed         bigint NOT NULL DEFAULT 0 CHECK (failed >= 0),
    test_accepted  bigint NOT NULL DEFAULT 0 CHECK (test_accepted >= 0),
    test_delivered bigint NOT NULL DEFAULT 0 CHECK (test_delivered >= 0),
    test_bounced   bigint NOT NULL DEFAULT 0 CHECK (test_bounced >= 0),
    test_failed    bigint NOT NULL DEFAULT 0 CHECK (test_failed >= 0),
    PRIMARY KEY (account_id, day)
) WITH (fillfactor = 70);

CREATE TABLE usage_hours (
    account_id     uuid NOT NULL,
    hour           timestamptz NOT NULL,
    accepted       bigint NOT NULL DEFAULT 0 CHECK (accepted >= 0),
    delivered      bigint NOT NULL DEFAULT 0 CHECK (delivered >= 0),
    bounced        bigint NOT NULL DEFAULT 0 CHECK (bounced >= 0),
    failed         bigint NOT NULL DEFAULT 0 CHECK (failed >= 0),
    test_accepted  bigint NOT NULL DEFAULT 0 CHECK (test_accepted >= 0),
    test_delivered bigint NOT NULL DEFAULT 0 CHECK (test_delivered >= 0),
    test_bounced   bigint NOT NULL DEFAULT 0 CHECK (test_bounced >= 0),
    test_failed    bigint NOT NULL DEFAULT 0 CHECK (test_failed >= 0),
    PRIMARY KEY (account_id, hour)
) WITH (fillfactor = 70);
CREATE INDEX usage_hours_hour ON usage_hours (hour);

-- A day's results by mailbox provider, and how long they took, as histograms: of all results, and of deliveries.
CREATE TABLE usage_latency (
    account_id       uuid NOT NULL,
    day              date NOT NULL,
    provider         text NOT NULL,
    delivered        bigint NOT NULL DEFAULT 0 CHECK (delivered >= 0),
    bounced          bigint NOT NULL DEFAULT 0 CHECK (bounced >= 0),
    failed           bigint NOT NULL DEFAULT 0 CHECK (failed >= 0),
    counts           bigint[] NOT NULL,
    delivered_counts bigint[] NOT NULL,
    PRIMARY KEY (account_id, day, provider)
) WITH (fillfactor = 70);
CREATE INDEX usage_latency_day ON usage_latency (day);

-- Why recipients bounced, failed or were deferred. `code` is a status code, '' without a reply; `example_id` is the
-- newest message that it happened to.
CREATE TABLE usage_reasons (
    account_id uuid NOT NULL,
    day        date NOT NULL,
    provider   text NOT NULL,
    result     text NOT NULL CHECK (result IN ('bounced', 'failed', 'deferred')),
    code       text NOT NULL,
    reason     text NOT NULL,
    count      bigint NOT NULL CHECK (count > 0),
    example_id uuid NOT NULL,
    PRIMARY KEY (account_id, day, provider, result, code, reason)
) WITH (fillfactor = 70);
CREATE INDEX usage_reasons_day ON usage_reasons (day);

-- How far usage has been counted: for every account before `counted_before`, and in the current pass, which goes up to
-- `pass_before`, for the accounts up to `pass_account_id`. Accepted mail of days before `recount_day` was counted a
-- second time, and that of `recount_day` for the accounts up to `recount_account_id`.
CREATE TABLE usage_counter_progress (
    singleton          boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    counted_before     timestamptz NOT NULL,
    pass_before        timestamptz NOT NULL,
    pass_account_id    uuid,
    recount_day        date NOT NULL,
    recount_account_id uuid,
    CHECK (counted_before <= pass_before)
) WITH (fillfactor = 50);
