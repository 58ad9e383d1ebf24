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
# Another one of the same kind ends the time of the one before.
_NOTE_FIRST: Final = """
WITH ended AS (DELETE FROM last_done WHERE starts_with(name, $1) AND name <> $2)
INSERT INTO last_done (name, at) VALUES ($2, $3)
ON CONFLICT (name) DO UPDATE SET at = last_done.at RETURNING at
"""


async def note(tx: Connection, name: str, at: datetime) -> None:
    await tx.execute(_NOTE, name, at)


async def note_first(tx: Connection, kind: str, name: str, at: datetime) -> datetime:
    """When this one of the names that begin with `kind` was noted for the first time."""
    first: datetime = await tx.fetchval(_NOTE_FIRST, kind, name, at)
    return first


async def find_all(connection: Connection) -> dict[str, datetime]:
    return {row["name"]: row["at"] for row in await connection.fetch("SELECT name, at FROM last_done")}
