"""What workers say of their lanes, for the operator to watch; and who is held, counted without a search."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Worth nothing after a crash, and written every two seconds: unlogged. No index but the key, so that a report
# changes its rows in place.
LANE_REPORTS = """
CREATE UNLOGGED TABLE lane_reports (
    worker_id       uuid NOT NULL,
    lane            text NOT NULL,
    waiting         integer NOT NULL,
    in_flight       integer NOT NULL,
    connections     integer NOT NULL,
    delivered_total bigint NOT NULL,
    deferred_total  bigint NOT NULL,
    paused_until    timestamptz,
    last_reply      text,
    reported_at     timestamptz NOT NULL,
    PRIMARY KEY (worker_id, lane)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)
"""

# Empty but for mail of suspended accounts and paused lanes.
HELD = "CREATE INDEX schedule_held_since ON schedule (held_since) WHERE held_since IS NOT NULL"


def upgrade() -> None:
    op.execute(LANE_REPORTS)
    op.execute(HELD)


def downgrade() -> None:
    op.execute("DROP INDEX schedule_held_since")
    op.execute("DROP TABLE lane_reports")
