"""What accounts sent of late and how it ended, for operators: figures of some accounts, and which stand out."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

from posthouse.rules.ids import AccountId
from posthouse.store.postgres import Connection
from posthouse.store.usage import UsageCounts

# Of fewer recipients, a share says nothing.
CONDUCT_RECIPIENTS_MIN: Final = 20


class AccountOrder(StrEnum):
    NAME = "name"
    VOLUME = "volume"
    CONDUCT = "conduct"
    NEW = "new"


class AccountFigures(NamedTuple):
    """`warned_at` is set while bounces or complaints are too many."""

    warned_at: datetime | None
    counts: UsageCounts


_FIGURES: Final = """
SELECT asked.id, asked.conduct_warned_at, sums.*
FROM accounts asked
CROSS JOIN LATERAL (
    SELECT coalesce(sum(accepted), 0)::bigint AS accepted, coalesce(sum(delivered), 0)::bigint AS delivered,
        coalesce(sum(bounced), 0)::bigint AS bounced, coalesce(sum(failed), 0)::bigint AS failed
    FROM usage_hours WHERE account_id = asked.id AND hour >= $2) sums
WHERE asked.id = ANY($1::uuid[])
"""
_BY_VOLUME: Final = """
SELECT account_id FROM usage_hours WHERE hour >= $1
GROUP BY account_id HAVING sum(accepted) > 0 ORDER BY sum(accepted) DESC, account_id LIMIT $2
"""
_BY_CONDUCT: Final = f"""
SELECT account_id FROM usage_hours WHERE hour >= $1
GROUP BY account_id HAVING sum(accepted) >= {CONDUCT_RECIPIENTS_MIN} AND sum(bounced + failed) > 0
ORDER BY sum(bounced + failed)::float8 / sum(accepted)::float8 DESC, account_id LIMIT $2
"""
# Ids begin with the time.
_NEW: Final = "SELECT id AS account_id FROM accounts ORDER BY id DESC LIMIT $1"


async def of_accounts(
    connection: Connection, account_ids: Sequence[AccountId], since: datetime
) -> Mapping[AccountId, AccountFigures]:
    """Live mail that was accepted since the beginning of an hour."""
    rows = await connection.fetch(_FIGURES, account_ids, since)
    return {row["id"]: AccountFigures(row["conduct_warned_at"], UsageCounts(*tuple(row)[2:])) for row in rows}


async def first(connection: Connection, order: AccountOrder, since: datetime, count: int) -> list[AccountId]:
    """Those with the most mail, with the largest share that was not delivered, or the newest."""
    if order is AccountOrder.NEW:
        rows = await connection.fetch(_NEW, count)
    else:
        query = _BY_VOLUME if order is AccountOrder.VOLUME else _BY_CONDUCT
        rows = await connection.fetch(query, since, count)
    return [row["account_id"] for row in rows]
