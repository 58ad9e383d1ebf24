"""Bodies are compressed by PostgreSQL with lz4, where it has that: new bodies, from today's partition on.

Nothing that runs notices: PostgreSQL reads both forms, and gives the same bytes. See decision record 0060.
"""

from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

# Only the catalogue changes: what is stored stays as it is. A partition that is made later has what the table has.
COMPRESS = """
DO $$
DECLARE
    part regclass;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)) THEN
        RETURN;
    END IF;
    ALTER TABLE ONLY bodies ALTER COLUMN mime SET STORAGE MAIN, ALTER COLUMN mime SET COMPRESSION lz4;
    FOR part IN
        SELECT inhrelid FROM pg_inherits
        WHERE inhparent = 'bodies'::regclass
            AND right(inhrelid::regclass::text, 8) >= to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')
        ORDER BY inhrelid::regclass::text
    LOOP
        EXECUTE format('ALTER TABLE %s ALTER COLUMN mime SET STORAGE MAIN, ALTER COLUMN mime SET COMPRESSION lz4,'
            ' SET (toast_tuple_target = 1024)', part);
    END LOOP;
END $$
"""


def upgrade() -> None:
    op.execute(COMPRESS)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
