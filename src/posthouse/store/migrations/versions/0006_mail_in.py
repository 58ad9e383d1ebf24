"""Mail that comes in: bounces and complaints, lists that people leave, mail to the postmaster; accounts' conduct."""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

# A bounce or a complaint that came back after its message had left. It changes no result. The id is made of what
# was said about whom, so that the same report twice is one row; without a position it is about none of the recipients.
# A shared one came by a token that several recipients got: each of them could have written it.
REPORTS = """
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
) PARTITION BY RANGE (message_id)
"""

# A day that is there gets its reports as well.
DAYS = """
DO $$
DECLARE
    day record;
BEGIN
    FOR day IN
        SELECT substring(child.relname FROM 10) AS name, pg_get_expr(child.relpartbound, child.oid) AS bounds
        FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
        WHERE inhparent = CAST('attempts' AS regclass) AND NOT inhdetachpending
    LOOP
        EXECUTE 'CREATE TABLE reports_' || day.name || ' PARTITION OF reports ' || day.bounds;
    END LOOP;
END $$
"""

# The list that a message was sent to, by its tag; and who has left which.
LISTS = """
ALTER TABLE messages ADD COLUMN mailing_list text, ADD COLUMN one_click boolean NOT NULL DEFAULT false,
    ADD CHECK (NOT one_click OR mailing_list IS NOT NULL);
CREATE TABLE unsubscriptions (
    account_id   uuid NOT NULL,
    mailing_list text NOT NULL,
    email        text NOT NULL CHECK (email = lower(email)),
    at           timestamptz NOT NULL,
    PRIMARY KEY (account_id, mailing_list, email)
)
"""

# Mail to postmaster@ and abuse@, kept for the operator.
INBOX = """
CREATE TABLE inbox (
    id         uuid PRIMARY KEY,
    recipient  text NOT NULL,
    sender     text NOT NULL,
    peer       text NOT NULL,
    subject    text NOT NULL,
    mime       bytea NOT NULL,
    at         timestamptz NOT NULL
)
"""

# Conduct counts what came after conduct_since: an operator who lets an account go on wipes the slate clean.
# A return path names an account by the end of its id, which is chance. The index on suppressions only includes the
# account: with the account in its key, a plan made while the table was empty looks up an address by it, for ever after.
CONDUCT = """
ALTER TABLE accounts
    ADD COLUMN conduct_exempt boolean NOT NULL DEFAULT false,
    ADD COLUMN conduct_since  timestamptz,
    ADD COLUMN conduct_warned_at timestamptz;
CREATE INDEX accounts_tail ON accounts (substring(uuid_send(id) FROM 13));
CREATE INDEX suppressions_at ON suppressions (at) INCLUDE (account_id, reason)
"""


def upgrade() -> None:
    for statements in (REPORTS, LISTS, INBOX, CONDUCT):
        for statement in statements.split(";\n"):
            op.execute(statement)
    op.execute(DAYS)


def downgrade() -> None:
    raise NotImplementedError("who complained and who left a list would be forgotten; restore a backup instead")
