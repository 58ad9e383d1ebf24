"""When something was last done that is expected from time to time: upkeep, a backup."""

from datetime import datetime
from typing import Final

from posthouse.store.postgres import Connection

UPKEEP: Final = "upkeep"
BACKUP: Final = "backup"

_NOTE: Final = """
INSERT INTO last_done (name, at) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET at = greatest(last_done.at, excluded.at)
"""


async def note(tx: Connection, name: str, at: datetime) -> None:
    await tx.execute(_NOTE, name, at)


async def find_all(connection: Connection) -> dict[str, datetime]:
    return {row["name"]: row["at"] for row in await connection.fetch("SELECT name, at FROM last_done")}
