"""The tables of the baseline: `baseline/*.sql`, a file for each area. Later changes are in separate migrations."""

from pathlib import Path

import asyncpg
from alembic import op
from sqlalchemy.util import await_only

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

DIRECTORY = Path(__file__).parents[1] / "baseline"
# The operator's tables come first, since accounts refer to pools.
AREAS = ("operator", "accounts", "messages", "webhooks", "inbound")


def upgrade() -> None:
    # Whole files, since the driver would prepare each statement. It begins a transaction only for its own statements.
    op.execute("SET LOCAL client_min_messages = warning")
    connection: asyncpg.Connection = op.get_bind().connection.driver_connection
    for area in AREAS:
        await_only(connection.execute((DIRECTORY / f"{area}.sql").read_text()))


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead")
