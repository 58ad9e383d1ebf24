"""An account's use by day, and the addresses that it suppresses by itself."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# What was accepted on a day and what has become of it since, kept for ever; and how long results took, by mailbox
# provider, as a histogram. Both grow a few times a minute while their day's mail is open.
USAGE = """
CREATE TABLE usage_days (
    account_id uuid NOT NULL,
    day        date NOT NULL,
    accepted   bigint NOT NULL DEFAULT 0 CHECK (accepted >= 0),
    delivered  bigint NOT NULL DEFAULT 0 CHECK (delivered >= 0),
    bounced    bigint NOT NULL DEFAULT 0 CHECK (bounced >= 0),
    failed     bigint NOT NULL DEFAULT 0 CHECK (failed >= 0),
    PRIMARY KEY (account_id, day)
) WITH (fillfactor = 70);

CREATE TABLE usage_latency (
    account_id uuid NOT NULL,
    day        date NOT NULL,
    provider   text NOT NULL,
    counts     bigint[] NOT NULL,
    PRIMARY KEY (account_id, day, provider)
) WITH (fillfactor = 70);
CREATE INDEX usage_latency_day ON usage_latency (day);

-- How far the counting has come: of every account all before low, and before high of those up to walked_to. Of days
-- before closing the accepted mail was counted once more, and of that day that of the accounts up to closed_to.
CREATE TABLE reckoning (
    is_the_only_row boolean PRIMARY KEY DEFAULT true CHECK (is_the_only_row),
    low       timestamptz NOT NULL,
    high      timestamptz NOT NULL,
    walked_to uuid,
    closing   date NOT NULL,
    closed_to uuid,
    CHECK (low <= high)
) WITH (fillfactor = 50)
"""

# What an account suppresses by itself is `manual`: an import of a million such addresses is nothing that conduct
# looks at. Addresses compare byte by byte, so that the primary key finds those with a prefix, whatever the
# database's language; that builds the key anew, some ten seconds for a million addresses, while mail waits.
SUPPRESSIONS = """
ALTER TABLE suppressions
    ALTER COLUMN email TYPE text COLLATE "C",
    ADD COLUMN note text,
    ADD COLUMN added_by text,
    DROP CONSTRAINT suppressions_reason_check,
    ADD CONSTRAINT suppressions_reason_check CHECK (reason IN ('bounce', 'complaint', 'manual')) NOT VALID,
    ADD CONSTRAINT suppressions_note_check CHECK (length(note) <= 200) NOT VALID;
CREATE TABLE lifted_suppressions (
    account_id uuid NOT NULL,
    reason     text NOT NULL CHECK (reason IN ('bounce', 'complaint')),
    at         timestamptz NOT NULL
);
CREATE INDEX lifted_suppressions_at ON lifted_suppressions (at) INCLUDE (account_id, reason);
CREATE TABLE suppression_books (
    account_id uuid PRIMARY KEY,
    manual     bigint NOT NULL DEFAULT 0,
    importer   uuid,
    held_until timestamptz,
    CHECK ((importer IS NULL) = (held_until IS NULL))
)
"""


def upgrade() -> None:
    for statements in (USAGE, SUPPRESSIONS):
        for statement in statements.split(";\n"):
            op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("what was recorded would be forgotten; restore a backup instead")
