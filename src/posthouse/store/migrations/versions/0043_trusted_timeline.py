"""The cluster and timeline of PostgreSQL on which the schedule is trusted; another one may be a restored database's."""

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

# `doubted` is another one that was found at `doubted_at`, when service time had last been noted at `known_until`.
# `restored_at` is when the last restore was noticed; the database knew everything up to `restored_to`.
STATEMENTS = (
    """
    CREATE TABLE trusted_timeline (
        is_the_only_row boolean PRIMARY KEY DEFAULT true CHECK (is_the_only_row),
        trusted text,
        doubted text,
        doubted_at timestamptz,
        known_until timestamptz,
        restored_at timestamptz,
        restored_to timestamptz
    )
    """,
    """
    INSERT INTO trusted_timeline (trusted)
    SELECT system_identifier::text || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) FROM pg_control_system()
    """,
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
