"""When accounts were suspended: that time is no part of the time that their mail may take."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

SUSPENSIONS = """
CREATE TABLE suspensions (
    account_id uuid NOT NULL REFERENCES accounts,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz,
    PRIMARY KEY (account_id, started_at),
    CHECK (ended_at >= started_at)
)
"""

# Those of before are in the audit log; an account that is suspended now has a row in any case.
KNOWN = """
INSERT INTO suspensions (account_id, started_at, ended_at)
SELECT began.account_id, began.at, (
    SELECT min(ended.at) FROM audit_log ended
    WHERE ended.account_id = began.account_id AND ended.action = 'account.resumed' AND ended.at >= began.at)
FROM audit_log began JOIN accounts ON accounts.id = began.account_id
WHERE began.action = 'account.suspended' AND began.at IS DISTINCT FROM accounts.suspended_at
ON CONFLICT DO NOTHING
"""
OPEN = """
INSERT INTO suspensions (account_id, started_at)
SELECT id, suspended_at FROM accounts WHERE suspended_at IS NOT NULL
ON CONFLICT DO NOTHING
"""


def upgrade() -> None:
    for statement in (SUSPENSIONS, KNOWN, OPEN):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("mail would expire for the time of past suspensions; restore a backup instead")
