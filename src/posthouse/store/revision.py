"""The schema version: the newest, and that of a database.

Alembic knows both, but takes a second to import, and every process asks when it starts.
"""

from pathlib import Path
from typing import Final

from posthouse.store.postgres import Connection

DIRECTORY: Final = Path(__file__).parent / "migrations"


def newest() -> str:
    """Migrations' files are named by their revisions, which are numbers of four digits."""
    return max(file.name.partition("_")[0] for file in (DIRECTORY / "versions").glob("[0-9]*.py"))


async def applied(connection: Connection) -> str | None:
    """None without any tables. A version above the newest was applied by a newer release."""
    if not await connection.fetchval("SELECT to_regclass('alembic_version') IS NOT NULL"):
        return None
    found: str | None = await connection.fetchval("SELECT version_num FROM alembic_version")
    return found
