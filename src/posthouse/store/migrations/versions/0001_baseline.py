"""The tables of the baseline: `baseline/*.sql`, a file for each area. Later changes are in separate migrations."""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

DIRECTORY = Path(__file__).parents[1] / "baseline"
# The operator's tables come first, since accounts refer to pools.
AREAS = ("operator", "accounts", "messages", "webhooks", "inbound")


def upgrade() -> None:
    for area in AREAS:
        for statement in _statements((DIRECTORY / f"{area}.sql").read_text()):
            op.execute(statement)


def _statements(text: str) -> list[str]:
    """The statements of a file: lines that continue a statement are indented."""
    found: list[str] = []
    for part in text.split(";\n"):
        if part.startswith(" "):
            found[-1] += f";\n{part}"
        elif part.strip():
            found.append(part)
    return found


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
