-- Bounces and complaints, the addresses that get no more mail because of them, and mail to the postmaster.

-- Bounces and complaints that were received after their message had left. They change no result. The id is derived from
-- the content of the report and its recipient, so that the same report twice is one row; without a position it is about
-- none of the recipients. A shared report came with a token that several recipients got: each of them could have
-- written it.
CREATE TABLE reports (
    account_id uuid NOT NULL,
    message_id uuid NOT NULL,
    id         uuid NOT NULL,
    position   smallint,
    kind       text NOT NULL CHECK (kind IN ('bounce', 'complaint')),
    detail     text NOT NULL,
    status     text,
    code       smallint,
    response   text,
    suppressed boolean NOT NULL,
    shared     boolean NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (account_id, message_id, id)
) PARTITION BY RANGE (message_id);

-- Addresses that an account sends no more mail to. The account's own entries are `manual`, which reputation ignores,
-- even an import of a million addresses. Addresses compare byte by byte, so that the primary key finds those with a
-- prefix, whatever the database's language.
CREATE TABLE suppressions (
    account_id uuid NOT NULL,
    email      text COLLATE "C" NOT NULL CHECK (email = lower(email)),
    reason     text NOT NULL CHECK (reason IN ('bounce', 'complaint', 'manual')),
    code       smallint,
    response   text,
    note       text CHECK (length(note) <= 200),
    added_by   text,
    at         timestamptz NOT NULL,
    PRIMARY KEY (account_id, email)
);
-- The indexes below must not be used to look up an address: with the account in the key, a plan made while the table
-- was empty would do that from then on. So the first only includes the account, and those for the lists are for
-- statements with a condition on the time that is always true.
CREATE INDEX suppressions_reputation ON suppressions (at) INCLUDE (account_id, reason) WHERE reason <> 'manual';
CREATE INDEX suppressions_newest ON suppressions (account_id, reason, at, email) WHERE at > '-infinity';
CREATE INDEX suppressions_domain ON suppressions (account_id, split_part(email, '@', 2), reason, at, email)
    WHERE at > '-infinity';

-- Addresses with bounces or complaints that were removed from the list, kept for a day for the reputation check.
CREATE TABLE removed_suppressions (
    account_id uuid NOT NULL,
    reason     text NOT NULL CHECK (reason IN ('bounce', 'complaint')),
    at         timestamptz NOT NULL
);
CREATE INDEX lifted_suppressions_at ON removed_suppressions (at) INCLUDE (account_id, reason);

-- The number of an account's own entries, and the lock of an import.
CREATE TABLE suppression_counts (
    account_id uuid PRIMARY KEY,
    manual     bigint NOT NULL DEFAULT 0,
    importer   uuid,
    held_until timestamptz,
    CHECK ((importer IS NULL) = (held_until IS NULL))
);

-- Who has left which of an account's lists.
CREATE TABLE unsubscriptions (
    account_id   uuid NOT NULL,
    mailing_list text NOT NULL,
    email        text NOT NULL CHECK (email = lower(email)),
    at           timestamptz NOT NULL,
    PRIMARY KEY (account_id, mailing_list, email)
);

-- An address is removed from an account's tables; a keyed hash of it still suppresses it. The address itself is stored
-- here while the erasure runs.
CREATE TABLE erasures (
    account_id  uuid NOT NULL REFERENCES accounts,
    id          uuid NOT NULL,
    email       text CHECK (email = lower(email)),
    hash        bytea NOT NULL,
    phase       text NOT NULL DEFAULT 'messages' CHECK (phase IN ('messages', 'events', 'others', 'done')),
    -- The last message or event that was examined in this phase.
    position    uuid NOT NULL,
    -- How many the pass had to leave.
    left_open   bigint NOT NULL DEFAULT 0,
    cancelled   bigint NOT NULL DEFAULT 0,
    erased      bigint NOT NULL DEFAULT 0,
    next_at     timestamptz NOT NULL,
    created_at  timestamptz NOT NULL,
    finished_at timestamptz,
    PRIMARY KEY (account_id, id),
    CHECK ((phase = 'done') = (finished_at IS NOT NULL)),
    CHECK ((phase = 'done') = (email IS NULL))
);
CREATE UNIQUE INDEX erasures_running ON erasures (account_id, hash) WHERE phase <> 'done';
CREATE INDEX erasures_due ON erasures (next_at) WHERE phase <> 'done';
CREATE INDEX erasures_finished ON erasures (finished_at);

CREATE TABLE erased_addresses (
    account_id uuid NOT NULL REFERENCES accounts,
    hash       bytea NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (account_id, hash)
);

-- Which of the day's recipients were erased, by keyed hash, and which account caused an invitation: reputation counts
-- both. Rows stay for a day, as long as reputation counts a message.
CREATE TABLE erased_recipients (
    account_id uuid NOT NULL,
    message_id uuid NOT NULL,
    position   smallint NOT NULL,
    hash       bytea NOT NULL,
    PRIMARY KEY (account_id, message_id, position)
);
CREATE INDEX erased_recipients_age ON erased_recipients (message_id);

-- Invitation messages belong to the account `sender_id`, which is the service's.
CREATE TABLE mailed_invitations (
    account_id uuid NOT NULL,
    message_id uuid NOT NULL,
    sender_id  uuid NOT NULL,
    PRIMARY KEY (account_id, message_id)
);
CREATE INDEX mailed_invitations_age ON mailed_invitations (message_id);

-- Mail to postmaster@ and abuse@, stored for the operator.
CREATE TABLE postmaster_mail (
    id        uuid PRIMARY KEY,
    recipient text NOT NULL,
    sender    text NOT NULL,
    peer      text NOT NULL,
    subject   text NOT NULL,
    mime      bytea NOT NULL,
    at        timestamptz NOT NULL
);
