"""An account's use by day, and the addresses that it suppresses by itself."""

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing yet."""


def downgrade() -> None:
    raise NotImplementedError("what was recorded would be forgotten; restore a backup instead")
