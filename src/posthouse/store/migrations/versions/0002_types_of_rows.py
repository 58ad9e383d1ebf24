"""Types of the rows that accepting and delivery pass to a statement as one array (decision record 0079).

A type that a released version uses stays as it is: another shape is a new type.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TYPES = """
CREATE TYPE accepted_recipient AS (
    field       text,
    email       text,
    destination text
);

CREATE TYPE accepted_message AS (
    account_id        uuid,
    message_id        uuid,
    credential_id     uuid,
    request_id        uuid,
    key_credential_id uuid,
    key               text,
    body_hash         bytea,
    source            text,
    sender            text,
    sender_domain     text,
    envelope_sender   text,
    subject           text,
    tags              text[],
    metadata          json,
    template          text,
    mailing_list      text,
    one_click         boolean,
    credits           smallint,
    send_at           timestamptz,
    trace             bytea,
    mime              bytea,
    -- The destination of all recipients, if not their own.
    routed_to         text,
    recipients        accepted_recipient[]
);

-- What an account has and has used, after a group commit.
CREATE TYPE account_spending AS (
    account_id         uuid,
    credits            bigint,
    rate_full_at       timestamptz,
    recipients_full_at timestamptz,
    stored_on          date,
    stored_bytes       bigint,
    stored_test_bytes  bigint,
    warmup_started_on  date,
    warmup_day         date,
    warmup_used        integer,
    warmup_ahead       jsonb
);

CREATE TYPE message_key AS (
    account_id uuid,
    message_id uuid
);

CREATE TYPE recipient_key AS (
    account_id uuid,
    message_id uuid,
    position   smallint,
    fence      integer
);

-- A locked row of delivery_schedule, for a claim.
CREATE TYPE due_recipient AS (
    place        tid,
    account_id   uuid,
    message_id   uuid,
    position     smallint,
    fence        integer,
    accepted_at  timestamptz,
    mailing_list text
);

CREATE TYPE changed_recipient AS (
    account_id     uuid,
    message_id     uuid,
    position       smallint,
    status         text,
    billing_status text,
    attempt_count  smallint,
    code           smallint,
    response       text
);

CREATE TYPE counted_message AS (
    place           tid,
    id              uuid,
    open_count      smallint,
    delivered_count smallint,
    released_count  smallint,
    status          text,
    billing_status  text
);

-- The last four are null unless the attempt changed its recipient.
CREATE TYPE finished_attempt AS (
    account_id   uuid,
    message_id   uuid,
    position     smallint,
    fence        integer,
    result       text,
    is_ambiguous boolean,
    mx_host      text,
    remote_ip    text,
    tls          text,
    stage        text,
    code         smallint,
    response     text,
    source_ip    text,
    relay        text,
    reply_signal text,
    ledger_kind  text,
    event_id     uuid,
    event_type   text,
    event_body   bytea
);

CREATE TYPE postponed_recipient AS (
    place          tid,
    next_at        timestamptz,
    uncounted      smallint,
    source_ip      text,
    bounce_at      timestamptz,
    first_code     smallint,
    first_response text
);
"""


def upgrade() -> None:
    for statement in filter(str.strip, TYPES.split(";\n")):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
