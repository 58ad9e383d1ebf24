"""The tables of the baseline: `baseline/*.sql`, a file for each area. Later changes are in migrations of their own."""

import re
from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

DIRECTORY = Path(__file__).parents[1] / "baseline"
# The operator's tables come first, since an account names its pool.
AREAS = ("operator", "accounts", "messages", "webhooks", "inbound")


def upgrade() -> None:
    for area in AREAS:
        # What continues a statement is indented.
        for statement in re.split(r";\n(?! )", (DIRECTORY / f"{area}.sql").read_text()):
            if statement.strip():
                op.execute(statement)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
