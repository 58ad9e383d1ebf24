"""Erasures: an address is taken out of an account's tables; a keyed hash of it goes on suppressing it."""

from alembic import op

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None

# The address itself is here while the erasure runs. `position` is the last message or event that was looked at in this
# phase; `left_open` counts what the pass had to leave.
ERASURES = """
CREATE TABLE erasures (
    account_id uuid NOT NULL REFERENCES accounts,
    id uuid NOT NULL,
    email text CHECK (email = lower(email)),
    hash bytea NOT NULL,
    phase text NOT NULL DEFAULT 'messages' CHECK (phase IN ('messages', 'events', 'others', 'done')),
    position uuid NOT NULL,
    left_open bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    erased bigint NOT NULL DEFAULT 0,
    next_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    finished_at timestamptz,
    PRIMARY KEY (account_id, id),
    CHECK ((phase = 'done') = (finished_at IS NOT NULL)),
    CHECK ((phase = 'done') = (email IS NULL))
)
"""
STATEMENTS = (
    ERASURES,
    "CREATE UNIQUE INDEX erasures_running ON erasures (account_id, hash) WHERE phase <> 'done'",
    "CREATE INDEX erasures_due ON erasures (next_at) WHERE phase <> 'done'",
    "CREATE INDEX erasures_finished ON erasures (finished_at)",
    (
        "CREATE TABLE erased_addresses (account_id uuid NOT NULL REFERENCES accounts, hash bytea NOT NULL,"
        " at timestamptz NOT NULL, PRIMARY KEY (account_id, hash))"
    ),
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
