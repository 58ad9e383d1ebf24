"""External relays, and which pools have one."""

from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

RELAYS = """
CREATE TABLE relays (
    name            text PRIMARY KEY CHECK (name ~ '^[a-z0-9][a-z0-9-]{0,39}$'),
    host            text NOT NULL,
    port            integer NOT NULL CHECK (port BETWEEN 1 AND 65535),
    username        text NOT NULL,
    password_sealed bytea NOT NULL,
    per_second      double precision NOT NULL CHECK (per_second > 0),
    created_at      timestamptz NOT NULL
)
"""


def upgrade() -> None:
    op.execute(RELAYS)
    # Nothing could set it before.
    op.execute("ALTER TABLE pools ADD CONSTRAINT pools_relay_fkey FOREIGN KEY (relay) REFERENCES relays")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
