"""The warm-up of new addresses: what each may send in a lane today; and what a relay takes a day."""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

# The address is empty of a relay's lane.
ALLOWANCES = """
CREATE TABLE allowances (
    ip              text NOT NULL,
    lane            text NOT NULL,
    day             date NOT NULL,
    hour            smallint NOT NULL,
    given           integer NOT NULL DEFAULT 0,
    given_this_hour integer NOT NULL DEFAULT 0,
    taken           integer NOT NULL DEFAULT 0,
    slow            integer NOT NULL DEFAULT 0,
    was_blocked     boolean NOT NULL DEFAULT false,
    warm_up         jsonb,
    PRIMARY KEY (ip, lane)
)
"""


def upgrade() -> None:
    op.execute(ALLOWANCES)
    op.execute("CREATE INDEX allowances_day ON allowances (day)")
    # Null of an address that needs no warm-up, as all that were there before.
    op.execute("ALTER TABLE addresses ADD COLUMN warms_up_since timestamptz")
    op.execute("ALTER TABLE relays ADD COLUMN per_day integer CHECK (per_day > 0)")
    # Whether the mail belongs to a list. Null is no, as of all mail that was accepted before.
    op.execute("ALTER TABLE schedule ADD COLUMN is_list boolean")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
