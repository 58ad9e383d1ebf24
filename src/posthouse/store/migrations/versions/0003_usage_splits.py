"""Usage by sending domain and by tag."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

STATEMENTS = """
-- Live mail accepted on a day by domain in From and by tag, and its results since. All values beyond the number that is
-- counted for an account, day and kind are counted together, as ''.
CREATE TABLE usage_splits (
    account_id uuid NOT NULL,
    day        date NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('domain', 'tag')),
    value      text NOT NULL,
    accepted   bigint NOT NULL CHECK (accepted >= 0),
    delivered  bigint NOT NULL CHECK (delivered >= 0),
    bounced    bigint NOT NULL CHECK (bounced >= 0),
    failed     bigint NOT NULL CHECK (failed >= 0),
    PRIMARY KEY (account_id, day, kind, value)
) WITH (fillfactor = 70);
CREATE INDEX usage_splits_day ON usage_splits (day);

-- Days that began before this are not split: the version before counted at least a part of them.
ALTER TABLE usage_counter_progress ADD COLUMN splits_since timestamptz NOT NULL DEFAULT now();
"""


def upgrade() -> None:
    for statement in filter(str.strip, STATEMENTS.split(";\n")):
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
