"""Who added a template's version, and the alias that a renamed template had before."""

from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE template_versions ADD COLUMN author text")
    op.execute("ALTER TABLE templates ADD COLUMN former_alias text")
    # A rename takes the versions with it.
    op.execute("ALTER TABLE template_versions DROP CONSTRAINT template_versions_account_id_alias_fkey")
    op.execute(
        "ALTER TABLE template_versions ADD CONSTRAINT template_versions_account_id_alias_fkey"
        " FOREIGN KEY (account_id, alias) REFERENCES templates ON DELETE CASCADE ON UPDATE CASCADE NOT VALID"
    )
    op.execute("ALTER TABLE template_versions VALIDATE CONSTRAINT template_versions_account_id_alias_fkey")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
