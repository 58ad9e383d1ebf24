"""Domains whose keys are rotated; credentials and keys that say when they were last used."""

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Nothing yet."""


def downgrade() -> None:
    raise NotImplementedError("what was recorded would be forgotten; restore a backup instead")
