"""Usage by hour, of test mail, and by mailbox provider; the reasons of bounces, failures and deferrals."""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

# A constant default changes no stored row.
MORE_COLUMNS = """
ALTER TABLE usage_days
    ADD COLUMN test_accepted  bigint NOT NULL DEFAULT 0 CHECK (test_accepted >= 0),
    ADD COLUMN test_delivered bigint NOT NULL DEFAULT 0 CHECK (test_delivered >= 0),
    ADD COLUMN test_bounced   bigint NOT NULL DEFAULT 0 CHECK (test_bounced >= 0),
    ADD COLUMN test_failed    bigint NOT NULL DEFAULT 0 CHECK (test_failed >= 0);
ALTER TABLE usage_latency
    ADD COLUMN delivered        bigint NOT NULL DEFAULT 0 CHECK (delivered >= 0),
    ADD COLUMN bounced          bigint NOT NULL DEFAULT 0 CHECK (bounced >= 0),
    ADD COLUMN failed           bigint NOT NULL DEFAULT 0 CHECK (failed >= 0),
    ADD COLUMN delivered_counts bigint[] NOT NULL DEFAULT '{}'
"""

TABLES = """
CREATE TABLE usage_hours (
    account_id     uuid NOT NULL,
    hour           timestamptz NOT NULL,
    accepted       bigint NOT NULL DEFAULT 0 CHECK (accepted >= 0),
    delivered      bigint NOT NULL DEFAULT 0 CHECK (delivered >= 0),
    bounced        bigint NOT NULL DEFAULT 0 CHECK (bounced >= 0),
    failed         bigint NOT NULL DEFAULT 0 CHECK (failed >= 0),
    test_accepted  bigint NOT NULL DEFAULT 0 CHECK (test_accepted >= 0),
    test_delivered bigint NOT NULL DEFAULT 0 CHECK (test_delivered >= 0),
    test_bounced   bigint NOT NULL DEFAULT 0 CHECK (test_bounced >= 0),
    test_failed    bigint NOT NULL DEFAULT 0 CHECK (test_failed >= 0),
    PRIMARY KEY (account_id, hour)
) WITH (fillfactor = 70);
CREATE INDEX usage_hours_hour ON usage_hours (hour);

-- code is a status code, '' without a reply; example_id is the newest message that it happened to.
CREATE TABLE usage_reasons (
    account_id uuid NOT NULL,
    day        date NOT NULL,
    provider   text NOT NULL,
    result     text NOT NULL CHECK (result IN ('bounced', 'failed', 'deferred')),
    code       text NOT NULL,
    reason     text NOT NULL,
    count      bigint NOT NULL CHECK (count > 0),
    example_id uuid NOT NULL,
    PRIMARY KEY (account_id, day, provider, result, code, reason)
) WITH (fillfactor = 70);
CREATE INDEX usage_reasons_day ON usage_reasons (day)
"""


def upgrade() -> None:
    for statements in (MORE_COLUMNS, TABLES):
        for statement in statements.split(";\n"):
            op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("what was counted would be forgotten; restore a backup instead")
