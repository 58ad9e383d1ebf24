"""The sizes of template versions, for the limit on what an account stores."""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

STATEMENTS = (
    "ALTER TABLE templates ADD COLUMN size_bytes bigint NOT NULL DEFAULT 0",
    "ALTER TABLE template_versions ADD COLUMN size_bytes integer NOT NULL DEFAULT 0",
    """
    UPDATE template_versions SET size_bytes = coalesce(octet_length(subject), 0) + coalesce(octet_length(text), 0)
        + coalesce(octet_length(html), 0)
    """,
    """
    UPDATE templates SET size_bytes = sizes.total
    FROM (SELECT account_id, alias, sum(size_bytes) AS total FROM template_versions GROUP BY 1, 2) sizes
    WHERE sizes.account_id = templates.account_id AND sizes.alias = templates.alias
    """,
    "ALTER TABLE templates ADD CHECK (size_bytes >= 0)",
)


def upgrade() -> None:
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
