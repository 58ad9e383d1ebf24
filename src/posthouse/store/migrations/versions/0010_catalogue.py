"""The catalogue, by which messages are found."""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# A row says that the message has the term (rules/search.py). The key is all there is to it, in the order in which a
# page is read.
CATALOGUE = """
CREATE TABLE catalogue (
    account_id uuid NOT NULL,
    term       bigint NOT NULL,
    message_id uuid NOT NULL,
    PRIMARY KEY (account_id, term, message_id)
) PARTITION BY RANGE (message_id);
CREATE TABLE catalogue_progress (
    is_the_only_row boolean PRIMARY KEY DEFAULT true CHECK (is_the_only_row),
    messages_to     uuid NOT NULL,
    events_to       uuid NOT NULL
) WITH (fillfactor = 50)
"""

# A day that is there gets its catalogue as well.
DAYS = """
DO $$
DECLARE
    day record;
BEGIN
    FOR day IN
        SELECT substring(child.relname FROM 10) AS name, pg_get_expr(child.relpartbound, child.oid) AS bounds
        FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid
        WHERE inhparent = CAST('messages' AS regclass) AND NOT inhdetachpending
    LOOP
        EXECUTE 'CREATE TABLE catalogue_' || day.name || ' PARTITION OF catalogue ' || day.bounds;
    END LOOP;
END $$
"""


def upgrade() -> None:
    for statement in CATALOGUE.split(";\n"):
        op.execute(statement)
    op.execute(DAYS)


def downgrade() -> None:
    op.execute("DROP TABLE catalogue, catalogue_progress")
