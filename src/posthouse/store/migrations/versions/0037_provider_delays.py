"""How long mail to each mailbox provider takes, and the delays that this shows."""

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

HOURS = """
CREATE TABLE provider_hours (
    provider         text NOT NULL,
    hour             timestamptz NOT NULL,
    delivered_counts bigint[] NOT NULL,
    PRIMARY KEY (provider, hour)
) WITH (fillfactor = 70)
"""
DELAYS = """
CREATE TABLE provider_delays (
    provider         text PRIMARY KEY,
    since            timestamptz NOT NULL,
    p95_seconds      double precision NOT NULL,
    week_p95_seconds double precision NOT NULL
)
"""


def upgrade() -> None:
    op.execute(HOURS)
    op.execute(DELAYS)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
