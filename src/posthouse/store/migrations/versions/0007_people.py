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
);
CREATE INDEX audit_log_at ON audit_log (at)
"""

# An invitation is here while it is open: whoever accepts it takes it away.
INVITATIONS = """
CREATE TABLE invitations (
    account_id uuid NOT NULL REFERENCES accounts,
    id         uuid NOT NULL,
    email      text NOT NULL CHECK (email = lower(email)),
    role       text NOT NULL CHECK (role IN ('owner', 'admin', 'member', 'viewer')),
    token_hash bytea NOT NULL UNIQUE,
    inviter_id uuid REFERENCES users,
    inviter    text NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (account_id, id),
    UNIQUE (account_id, email)
);
CREATE INDEX invitations_expires_at ON invitations (expires_at)
"""

SESSIONS = """
CREATE TABLE sessions (
    id         uuid PRIMARY KEY,
    user_id    uuid NOT NULL REFERENCES users,
    account_id uuid NOT NULL REFERENCES accounts,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL CHECK (expires_at > created_at),
    revoked_at timestamptz
);
CREATE INDEX sessions_user ON sessions (user_id, id);
CREATE INDEX sessions_expires_at ON sessions (expires_at)
"""

# The last step that was used is kept, so that a code that somebody saw being typed is worth nothing.
SECOND_FACTORS = """
CREATE TABLE second_factors (
    user_id       uuid PRIMARY KEY REFERENCES users,
    secret_sealed bytea NOT NULL,
    created_at    timestamptz NOT NULL,
    confirmed_at  timestamptz,
    last_step     bigint NOT NULL DEFAULT 0
);
CREATE TABLE recovery_codes (
    user_id   uuid NOT NULL REFERENCES users,
    code_hash bytea NOT NULL,
    PRIMARY KEY (user_id, code_hash)
)
"""


def upgrade() -> None:
    for statements in (AUDIT_LOG, SESSIONS, SECOND_FACTORS, INVITATIONS):
        for statement in statements.split(";\n"):
            op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("what was recorded would be forgotten; restore a backup instead")
