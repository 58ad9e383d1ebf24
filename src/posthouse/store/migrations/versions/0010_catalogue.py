"""The catalogue, by which messages are found."""

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing yet."""


def downgrade() -> None:
    raise NotImplementedError("what was recorded would be forgotten; restore a backup instead")
