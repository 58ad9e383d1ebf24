"""Lanes that operators paused, and the mail that waits for them.

A worker that keeps mail back for a lane locks the pause meanwhile, so that none is kept back after its end.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from posthouse.store.postgres import Connection
from posthouse.store.statement import statement


@dataclass(frozen=True, slots=True)
class LanePause:
    lane: str
    since: datetime
    reason: str


_ALL: Final = "SELECT lane, since, reason FROM lane_pauses ORDER BY lane"

_BEGIN: Final = statement("""
INSERT INTO lane_pauses (lane, since, reason) VALUES (:lane, :now, :reason) ON CONFLICT DO NOTHING RETURNING 1
""")

_LOCK: Final = "SELECT lane FROM lane_pauses WHERE lane = ANY($1::text[]) ORDER BY lane FOR SHARE"

_WAKE: Final = statement("""
UPDATE schedule SET next_at = :due_at, paused = paused + (:now::timestamptz - held_since), held_since = NULL,
    held_by = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM schedule
    WHERE held_since IS NOT NULL AND held_by = :lane LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
""")


async def find_all(connection: Connection) -> list[LanePause]:
    return [LanePause(*row) for row in await connection.fetch(_ALL)]


async def begin(tx: Connection, lane: str, reason: str, now: datetime) -> bool:
    """False if it is paused already."""
    return await tx.fetchval(*_BEGIN.bind(lane=lane, reason=reason, now=now)) is not None


async def end(tx: Connection, lane: str) -> bool:
    """False if it isn't paused."""
    return await tx.fetchval("DELETE FROM lane_pauses WHERE lane = $1 RETURNING 1", lane) is not None


async def locked(tx: Connection, lanes: Collection[str]) -> set[str]:
    """Which of these are paused, and stay so to the end of the transaction."""
    return {row["lane"] for row in await tx.fetch(_LOCK, list(lanes))}


async def wake(tx: Connection, lane: str, now: datetime, due_at: datetime, limit: int) -> int:
    """Make due then what waits for the lane; return how many. As many as `limit`: there may be more."""
    return len(await tx.fetch(*_WAKE.bind(lane=lane, now=now, due_at=due_at, limit=limit)))
