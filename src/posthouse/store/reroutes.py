"""Reroutes: mail that left, or was to leave, over a second address because the first was blocked."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.reroute import ENDED_FOR, HOUR_SECONDS, MINUTE_SECONDS, SECOND_BLOCK_WITHIN
from posthouse.store.postgres import Connection, row_count
from posthouse.store.statement import statement


class NewReroute(NamedTuple):
    account_id: AccountId
    message_id: MessageId
    position: int
    from_ip: str
    to_ip: str


# Only one process at a time decides; others may read.
_LOCK: Final = "LOCK TABLE reroutes IN SHARE ROW EXCLUSIVE MODE"

_RECENT: Final = statement("""
SELECT to_ip, count(*) AS hour, count(*) FILTER (WHERE at > :now::timestamptz - :minute * interval '1 second') AS minute
FROM reroutes WHERE lane = :lane AND at > :now::timestamptz - :hour * interval '1 second' GROUP BY to_ip
""")

_TRIES: Final = """
SELECT position, count(*) AS tries FROM reroutes WHERE account_id = $1 AND message_id = $2 GROUP BY position
"""

_ADD: Final = statement("""
INSERT INTO reroutes (at, lane, from_ip, to_ip, account_id, message_id, position)
SELECT :now, :lane, from_ip, to_ip, account_id, message_id, position
FROM unnest(:account_ids::uuid[], :message_ids::uuid[], :positions::smallint[], :from_ips::text[], :to_ips::text[])
    reroute(account_id, message_id, position, from_ip, to_ip)
""")

# When an address was blocked that had not been blocked before, even if only for a part of the lane.
_BLOCKS: Final = """
SELECT split_part(ip, '>', 1) AS ip, at FROM limit_changes
WHERE lane = $1 AND at > $2 AND kind = 'block' AND before ->> 'state' <> 'blocked'
"""

_REPUTATION: Final = "SELECT tier = 'good' AND suspended_at IS NULL FROM accounts WHERE id = $1"

_FORGET: Final = """
DELETE FROM reroutes WHERE id = ANY(ARRAY(SELECT id FROM reroutes WHERE at < $1 ORDER BY at LIMIT $2))
"""


async def lock(tx: Connection) -> None:
    """Until the end of the transaction no other process decides on a reroute."""
    await tx.execute(_LOCK)


async def recent(tx: Connection, lane: str, now: datetime) -> tuple[int, dict[str, int]]:
    """The lane's reroutes of the last minute, and of the last hour by second address."""
    rows = await tx.fetch(*_RECENT.bind(lane=lane, now=now, minute=MINUTE_SECONDS, hour=HOUR_SECONDS))
    return sum(row["minute"] for row in rows), {row["to_ip"]: row["hour"] for row in rows}


async def tries(tx: Connection, account_id: AccountId, message_id: MessageId) -> dict[int, int]:
    """How often each of the message's recipients was rerouted."""
    return {row["position"]: row["tries"] for row in await tx.fetch(_TRIES, account_id, message_id)}


async def blocks(tx: Connection, lane: str, now: datetime) -> Collection[tuple[str, datetime]]:
    """Which addresses the lane's provider blocked recently, and when."""
    return [(row["ip"], row["at"]) for row in await tx.fetch(_BLOCKS, lane, now - ENDED_FOR - SECOND_BLOCK_WITHIN)]


async def has_good_reputation(tx: Connection, account_id: AccountId) -> bool:
    return bool(await tx.fetchval(_REPUTATION, account_id))


async def add(tx: Connection, lane: str, reroutes: Sequence[NewReroute], now: datetime) -> None:
    await tx.execute(
        *_ADD.bind(
            now=now,
            lane=lane,
            account_ids=[reroute.account_id for reroute in reroutes],
            message_ids=[reroute.message_id for reroute in reroutes],
            positions=[reroute.position for reroute in reroutes],
            from_ips=[reroute.from_ip for reroute in reroutes],
            to_ips=[reroute.to_ip for reroute in reroutes],
        )
    )


async def forget(tx: Connection, before: datetime, count: int) -> int:
    return row_count(await tx.execute(_FORGET, before, count))
