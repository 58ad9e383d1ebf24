"""The foundation: accounts and their control tables, messages and what hangs on them, money."""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# One row an account: who it is, and what every accepted message changes. The columns that change
# with each message are in no index, so that their updates stay within the page (fillfactor).
ACCOUNTS = """
CREATE TABLE accounts (
    id                  uuid PRIMARY KEY,
    name                text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    created_at          timestamptz NOT NULL,
    changed_at          timestamptz NOT NULL,
    suspended_at        timestamptz,
    suspended_reason    text,
    available           bigint NOT NULL DEFAULT 0 CHECK (available >= 0),
    rate_per_second     integer CHECK (rate_per_second > 0),
    rate_burst          integer CHECK (rate_burst > 0),
    rate_full_at        timestamptz NOT NULL DEFAULT 'epoch',
    warmup_exempt       boolean NOT NULL DEFAULT false,
    warmup_limits       integer[],
    warmup_started_on   date,
    warmup_day          date,
    warmup_used         integer NOT NULL DEFAULT 0 CHECK (warmup_used >= 0),
    CHECK ((suspended_at IS NULL) = (suspended_reason IS NULL))
) WITH (fillfactor = 50)
"""

CONTROL = """
CREATE UNIQUE INDEX accounts_name ON accounts (lower(name));
CREATE INDEX accounts_changed_at ON accounts (changed_at);

CREATE TABLE credentials (
    account_id       uuid NOT NULL REFERENCES accounts,
    id               uuid NOT NULL,
    username         text NOT NULL UNIQUE,
    secret_hash      bytea NOT NULL,
    name             text NOT NULL,
    is_default       boolean NOT NULL DEFAULT false,
    allowed_networks cidr[] NOT NULL DEFAULT '{}',
    created_at       timestamptz NOT NULL,
    revoked_at       timestamptz,
    PRIMARY KEY (account_id, id)
);
CREATE UNIQUE INDEX credentials_default ON credentials (account_id) WHERE is_default;

CREATE TABLE api_keys (
    account_id    uuid NOT NULL,
    id            uuid NOT NULL,
    credential_id uuid NOT NULL,
    secret_hash   bytea NOT NULL UNIQUE,
    hint          text NOT NULL,
    name          text NOT NULL,
    mode          text NOT NULL CHECK (mode IN ('live', 'test')),
    may_read      boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz,
    revoked_at    timestamptz,
    PRIMARY KEY (account_id, id),
    FOREIGN KEY (account_id, credential_id) REFERENCES credentials
);

CREATE TABLE users (
    id            uuid PRIMARY KEY,
    email         text NOT NULL UNIQUE CHECK (email = lower(email)),
    password_hash text NOT NULL,
    created_at    timestamptz NOT NULL
);

CREATE TABLE memberships (
    account_id uuid NOT NULL REFERENCES accounts,
    user_id    uuid NOT NULL REFERENCES users,
    role       text NOT NULL CHECK (role IN ('owner', 'admin', 'member', 'viewer')),
    created_at timestamptz NOT NULL,
    PRIMARY KEY (account_id, user_id)
);
CREATE INDEX memberships_user ON memberships (user_id);

CREATE TABLE login_failures (
    subject    text PRIMARY KEY,
    count      integer NOT NULL CHECK (count > 0),
    blocked_until timestamptz NOT NULL
);

CREATE TABLE domains (
    account_id       uuid NOT NULL REFERENCES accounts,
    id               uuid NOT NULL,
    name             text NOT NULL CHECK (name = lower(name)),
    token            text NOT NULL,
    selector         text NOT NULL,
    dkim_public      text NOT NULL,
    dkim_sealed      bytea NOT NULL,
    created_at       timestamptz NOT NULL,
    verified_at      timestamptz,
    checked_at       timestamptz,
    missing_since    timestamptz,
    PRIMARY KEY (account_id, id),
    UNIQUE (account_id, name),
    CHECK (missing_since IS NULL OR verified_at IS NOT NULL)
);
CREATE INDEX domains_checked_at ON domains (checked_at) WHERE verified_at IS NOT NULL;

CREATE TABLE templates (
    account_id        uuid NOT NULL REFERENCES accounts,
    alias             text NOT NULL CHECK (alias ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    name              text NOT NULL,
    published_version integer,
    latest_version    integer NOT NULL CHECK (latest_version > 0),
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    PRIMARY KEY (account_id, alias),
    CHECK (published_version BETWEEN 1 AND latest_version)
);

CREATE TABLE template_versions (
    account_id uuid NOT NULL,
    alias      text NOT NULL,
    version    integer NOT NULL CHECK (version > 0),
    subject    text,
    text       text,
    html       text,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (account_id, alias, version),
    FOREIGN KEY (account_id, alias) REFERENCES templates ON DELETE CASCADE,
    CHECK (text IS NOT NULL OR html IS NOT NULL)
);
"""

# The large tables: a partition a day, by the time in the message's id; no foreign keys between them.
MESSAGES = """
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
    template         text,
    recipient_count  smallint NOT NULL CHECK (recipient_count BETWEEN 1 AND 50),
    credits_reserved smallint NOT NULL CHECK (credits_reserved IN (0, recipient_count)),
    open_count       smallint NOT NULL,
    delivered_count  smallint NOT NULL DEFAULT 0,
    released_count   smallint NOT NULL DEFAULT 0,
    created_at       timestamptz NOT NULL,
    PRIMARY KEY (account_id, id),
    CHECK (open_count >= 0 AND delivered_count >= 0 AND released_count >= 0),
    CHECK (open_count + delivered_count + released_count <= recipient_count),
    CHECK ((open_count > 0) = (status = 'queued')),
    CHECK ((open_count > 0) = (billing_status = 'reserved'))
) PARTITION BY RANGE (id);

CREATE TABLE recipients (
    account_id         uuid NOT NULL,
    message_id         uuid NOT NULL,
    position           smallint NOT NULL,
    field              text NOT NULL CHECK (field IN ('to', 'cc', 'bcc')),
    email              text NOT NULL,
    status             text NOT NULL DEFAULT 'queued'
                       CHECK (status IN ('queued', 'deferred', 'delivered', 'bounced', 'failed')),
    billing_status     text NOT NULL DEFAULT 'reserved',
    attempt_count      smallint NOT NULL DEFAULT 0 CHECK (attempt_count >= 0),
    last_smtp_code     smallint,
    last_smtp_response text,
    delivered_at       timestamptz,
    bounced_at         timestamptz,
    failed_at          timestamptz,
    PRIMARY KEY (account_id, message_id, position),
    CHECK ((status = 'delivered') = (delivered_at IS NOT NULL)),
    CHECK ((status = 'bounced') = (bounced_at IS NOT NULL)),
    CHECK ((status = 'failed') = (failed_at IS NOT NULL)),
    CHECK (billing_status = CASE
        WHEN status IN ('delivered', 'failed') THEN 'settled'
        WHEN status = 'bounced' THEN 'released'
        ELSE 'reserved' END)
) PARTITION BY RANGE (message_id);

CREATE TABLE bodies (
    account_id uuid NOT NULL,
    message_id uuid NOT NULL,
    mime       bytea NOT NULL,
    PRIMARY KEY (account_id, message_id)
) PARTITION BY RANGE (message_id);
ALTER TABLE bodies ALTER COLUMN mime SET STORAGE EXTERNAL;

-- One row reserves for the whole message (position -1), one closes each recipient: the key makes a
-- second reserve and a second close impossible.
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
"""

MONEY_AND_CALENDAR = """
CREATE TABLE grants (
    account_id uuid NOT NULL REFERENCES accounts,
    id         uuid NOT NULL,
    amount     bigint NOT NULL CHECK (amount <> 0),
    reason     text NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (account_id, id)
);

-- What a dropped day of the ledger came to, so that the sums stay whole for ever.
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

-- What is not final: when each recipient is next to be tried, and the fence that its claim must know.
CREATE TABLE schedule (
    account_id  uuid NOT NULL,
    message_id  uuid NOT NULL,
    position    smallint NOT NULL,
    destination text NOT NULL,
    next_at     timestamptz NOT NULL,
    fence       integer NOT NULL DEFAULT 0,
    PRIMARY KEY (account_id, message_id, position)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0);
CREATE INDEX schedule_next_at ON schedule (next_at);
"""


def upgrade() -> None:
    for statements in (ACCOUNTS, CONTROL, MESSAGES, MONEY_AND_CALENDAR):
        for statement in statements.split(";\n"):
            if statement.strip():
                op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("the foundation stays; restore a backup instead")
