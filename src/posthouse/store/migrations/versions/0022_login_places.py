"""Where a user has logged in from: the network and the family of the program."""

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("""
CREATE TABLE login_places (
    user_id     uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    network     text NOT NULL,
    program     text NOT NULL,
    last_at     timestamptz NOT NULL,
    notified_at timestamptz,
    PRIMARY KEY (user_id, network, program)
)
""")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
