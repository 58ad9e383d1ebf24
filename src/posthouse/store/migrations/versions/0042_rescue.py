"""Mail that a block of our address holds: when it bounces, and the first reply; and what left over another way."""

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

# With `bounce_at`, mail leaves from the row's `source` alone. The check is not made of rows from before, in which all
# three are null: that would read the whole table while it is locked.
HOLDS = """
ALTER TABLE schedule
    ADD COLUMN bounce_at      timestamptz,
    ADD COLUMN first_code     smallint,
    ADD COLUMN first_response text,
    ADD CHECK ((bounce_at IS NULL) = (first_code IS NULL) AND (bounce_at IS NULL) = (first_response IS NULL))
        NOT VALID
"""
# Few rows: the bounds of a rescue are counted here.
RESCUES = """
CREATE TABLE rescues (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL,
    lane       text NOT NULL,
    from_ip    text NOT NULL,
    to_ip      text NOT NULL,
    account_id uuid NOT NULL,
    message_id uuid NOT NULL,
    position   smallint NOT NULL
)
"""


def upgrade() -> None:
    op.execute(HOLDS)
    op.execute(RESCUES)
    op.execute("CREATE INDEX rescues_of_lane ON rescues (lane, at)")
    op.execute("CREATE INDEX rescues_of_message ON rescues (account_id, message_id)")
    op.execute("CREATE INDEX rescues_at ON rescues (at)")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
