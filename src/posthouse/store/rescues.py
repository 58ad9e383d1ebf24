"""Rescues: mail that left, or was to leave, over a second address because the first was blocked."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.rescue import ENDED_FOR, HOUR_SECONDS, MINUTE_SECONDS, SECOND_BLOCK_WITHIN
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement


class NewRescue(NamedTuple):
    account_id: AccountId
    message_id: MessageId
    position: int
    from_ip: str
    to_ip: str


# One process at a time decides; others may read.
_LOCK: Final = "LOCK TABLE rescues IN SHARE ROW EXCLUSIVE MODE"

_RECENT: Final = statement("""
SELECT to_ip, count(*) AS hour, count(*) FILTER (WHERE at > :now::timestamptz - :minute * interval '1 second') AS minute
FROM rescues WHERE lane = :lane AND at > :now::timestamptz - :hour * interval '1 second' GROUP BY to_ip
""")

_TRIES: Final = """
SELECT position, count(*) AS tries FROM rescues WHERE account_id = $1 AND message_id = $2 GROUP BY position
"""

_ADD: Final = statement("""
INSERT INTO rescues (at, lane, from_ip, to_ip, account_id, message_id, position)
SELECT :now, :lane, from_ip, to_ip, account_id, message_id, position
FROM unnest(:account_ids::uuid[], :message_ids::uuid[], :positions::smallint[], :from_ips::text[], :to_ips::text[])
    rescue(account_id, message_id, position, from_ip, to_ip)
""")

# When an address was blocked that had not been before, if only for a part of the lane.
_BLOCKS: Final = """
SELECT split_part(ip, '>', 1) AS ip, at FROM lessons
WHERE lane = $1 AND at > $2 AND kind = 'block' AND before ->> 'state' <> 'blocked'
"""

_CONDUCT: Final = "SELECT tier = 'good' AND suspended_at IS NULL FROM accounts WHERE id = $1"

_FORGET: Final = """
DELETE FROM rescues WHERE id = ANY(ARRAY(SELECT id FROM rescues WHERE at < $1 ORDER BY at LIMIT $2))
"""


async def lock(tx: Connection) -> None:
    """Until the end of the transaction no other process decides on a rescue."""
    await tx.execute(_LOCK)


async def recent(tx: Connection, lane: str, now: datetime) -> tuple[int, dict[str, int]]:
    """The lane's rescues of the last minute, and of the last hour by second address."""
    rows = await tx.fetch(*_RECENT.bind(lane=lane, now=now, minute=MINUTE_SECONDS, hour=HOUR_SECONDS))
    return sum(row["minute"] for row in rows), {row["to_ip"]: row["hour"] for row in rows}


async def tries(tx: Connection, account_id: AccountId, message_id: MessageId) -> dict[int, int]:
    """How often each of the message's recipients was rescued."""
    return {row["position"]: row["tries"] for row in await tx.fetch(_TRIES, account_id, message_id)}


async def blocks(tx: Connection, lane: str, now: datetime) -> Collection[tuple[str, datetime]]:
    """Which addresses the lane's provider blocked of late, and when."""
    return [(row["ip"], row["at"]) for row in await tx.fetch(_BLOCKS, lane, now - ENDED_FOR - SECOND_BLOCK_WITHIN)]


async def has_good_conduct(tx: Connection, account_id: AccountId) -> bool:
    return bool(await tx.fetchval(_CONDUCT, account_id))


async def add(tx: Connection, lane: str, rescues: Sequence[NewRescue], now: datetime) -> None:
    await tx.execute(
        *_ADD.bind(
            now=now,
            lane=lane,
            account_ids=[rescue.account_id for rescue in rescues],
            message_ids=[rescue.message_id for rescue in rescues],
            positions=[rescue.position for rescue in rescues],
            from_ips=[rescue.from_ip for rescue in rescues],
            to_ips=[rescue.to_ip for rescue in rescues],
        )
    )


async def forget(tx: Connection, before: datetime, count: int) -> int:
    return int((await tx.execute(_FORGET, before, count)).rpartition(" ")[2])
