"""Sending addresses and their pools, what DNS lists say of them, and where each attempt left from."""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

# A retired address keeps its row: attempts name it.
STATEMENTS = (
    """
    CREATE TABLE pools (
        name       text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,39}$'),
        tier       text UNIQUE CHECK (tier IN ('new', 'good', 'watched')),
        overflow   text REFERENCES pools CHECK (overflow <> name),
        relay      text,
        created_at timestamptz NOT NULL
    )
    """,
    """
    CREATE TABLE addresses (
        ip         inet PRIMARY KEY CHECK (masklen(ip) = CASE family(ip) WHEN 4 THEN 32 ELSE 128 END),
        hostname   text NOT NULL,
        pool       text NOT NULL REFERENCES pools,
        state      text NOT NULL CHECK (state IN ('active', 'resting', 'retired')),
        created_at timestamptz NOT NULL,
        changed_at timestamptz NOT NULL,
        checked_at timestamptz,
        findings   text[] NOT NULL DEFAULT '{}'
    )
    """,
    # A row is there while the list has the address.
    """
    CREATE TABLE listings (
        ip       inet NOT NULL REFERENCES addresses,
        zone     text NOT NULL,
        answer   text NOT NULL,
        since    timestamptz NOT NULL,
        seen_at  timestamptz NOT NULL,
        PRIMARY KEY (ip, zone)
    )
    """,
    # What operators changed in the installation itself; what they change in an account is in its audit log.
    """
    CREATE TABLE operator_log (
        id     uuid PRIMARY KEY,
        at     timestamptz NOT NULL,
        actor  text NOT NULL,
        action text NOT NULL,
        target text NOT NULL,
        detail jsonb NOT NULL
    )
    """,
    "ALTER TABLE accounts ADD COLUMN pool text REFERENCES pools",
    "CREATE INDEX accounts_pool ON accounts (pool) WHERE pool IS NOT NULL",
    # `source` is our address, `relay` the relay that took the mail, `remark` what the reply says about us.
    "ALTER TABLE attempts ADD COLUMN source text, ADD COLUMN relay text, ADD COLUMN remark text",
    # The domain in From, and the address of the last attempt if the next must come from there again.
    "ALTER TABLE schedule ADD COLUMN sender text, ADD COLUMN source text",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
