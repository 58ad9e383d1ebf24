"""Resends: failed mail that becomes new messages, once each."""

from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None

# `resent_as` of the old message and `resent_from` of the new one are set in the transaction that accepts the new one.
# `position` is the last message that was examined; `steps` is counted up by each step, so that of two processes that
# made the same step only one can commit it.
RESENDS = """
CREATE TABLE resends (
    account_id uuid NOT NULL REFERENCES accounts,
    id uuid NOT NULL,
    key text NOT NULL,
    request_hash bytea NOT NULL,
    since timestamptz NOT NULL,
    until timestamptz NOT NULL,
    tag text,
    metadata json,
    destination text,
    is_dry_run boolean NOT NULL,
    status text NOT NULL DEFAULT 'running' CHECK (status IN ('running', 'done', 'stopped')),
    waits_for text,
    position uuid NOT NULL,
    steps integer NOT NULL DEFAULT 0,
    found bigint NOT NULL DEFAULT 0,
    recipients bigint NOT NULL DEFAULT 0,
    resent bigint NOT NULL DEFAULT 0,
    without_body bigint NOT NULL DEFAULT 0,
    never bigint NOT NULL DEFAULT 0,
    refused bigint NOT NULL DEFAULT 0,
    next_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    finished_at timestamptz,
    PRIMARY KEY (account_id, id),
    UNIQUE (account_id, key),
    CHECK ((status = 'running') = (finished_at IS NULL))
)
"""
STATEMENTS = (
    RESENDS,
    "CREATE UNIQUE INDEX resends_running ON resends (account_id) WHERE status = 'running'",
    "CREATE INDEX resends_due ON resends (next_at) WHERE status = 'running'",
    "CREATE INDEX resends_finished ON resends (finished_at)",
    "ALTER TABLE messages ADD COLUMN resent_from uuid, ADD COLUMN resent_as uuid",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
