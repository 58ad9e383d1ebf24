"""What lanes have learnt, and each lesson of it."""

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

# Few rows, and few changes: a lane that has learnt nothing has none. The address is empty for an installation with
# only one.
STANDINGS = """
CREATE TABLE standings (
    ip         text NOT NULL,
    lane       text NOT NULL,
    standing   jsonb NOT NULL,
    version    bigint NOT NULL,
    changed_at timestamptz NOT NULL,
    PRIMARY KEY (ip, lane)
)
"""
LESSONS = """
CREATE TABLE lessons (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    ip         text NOT NULL,
    lane       text NOT NULL,
    kind       text NOT NULL,
    scope      text NOT NULL,
    before     jsonb NOT NULL,
    after      jsonb NOT NULL,
    until      timestamptz,
    cause      text NOT NULL,
    reply      text NOT NULL,
    message_id uuid
)
"""


def upgrade() -> None:
    op.execute(STANDINGS)
    op.execute("CREATE INDEX standings_changed ON standings (changed_at)")
    op.execute(LESSONS)
    op.execute("CREATE INDEX lessons_of_lane ON lessons (lane, id)")
    op.execute("CREATE INDEX lessons_at ON lessons (at)")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
