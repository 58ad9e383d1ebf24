"""People: sessions, second factors, invitations, and who changed what."""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


AUDIT_LOG = """
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
)
"""


def upgrade() -> None:
    op.execute(AUDIT_LOG)


def downgrade() -> None:
    raise NotImplementedError("what was recorded would be forgotten; restore a backup instead")
