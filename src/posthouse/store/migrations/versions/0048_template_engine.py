"""The engine of a template's version."""

from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

ENGINE = """
ALTER TABLE template_versions
    ADD COLUMN engine text NOT NULL DEFAULT 'plain' CHECK (engine IN ('plain', 'handlebars'))
"""


def upgrade() -> None:
    op.execute(ENGINE)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
