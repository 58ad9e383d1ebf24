"""What accounts sent recently and how it ended, for operators: figures of some accounts, and those that stand out."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from posthouse.rules.alert import PACE_DAYS
from posthouse.rules.ids import AccountId, lowest_id
from posthouse.rules.send_quota import CREDIT_DAYS_FAR
from posthouse.store.postgres import Connection
from posthouse.store.statement import statement
from posthouse.store.usage import UsageCounts

# With fewer recipients, a share means nothing.
REPUTATION_RECIPIENTS_MIN: Final = 20


class AccountOrder(StrEnum):
    NAME = "name"
    VOLUME = "volume"
    REPUTATION = "reputation"
    LIMITS = "limits"
    NEW = "new"


class AccountFigures(NamedTuple):
    """`warned_at` is set while there are too many bounces or complaints; `erased` addresses got some of this mail."""

    warned_at: datetime | None
    erased: int
    counts: UsageCounts


class RankedAccount(NamedTuple):
    id: AccountId
    rank: float


_FIGURES: Final = """
SELECT asked.id, asked.reputation_warned_at, (
    SELECT count(DISTINCT hash) FROM erased_recipients WHERE account_id = asked.id AND message_id >= $3) AS erased,
    sums.*
FROM accounts asked
CROSS JOIN LATERAL (
    SELECT coalesce(sum(accepted), 0)::bigint AS accepted, coalesce(sum(delivered), 0)::bigint AS delivered,
        coalesce(sum(bounced), 0)::bigint AS bounced, coalesce(sum(failed), 0)::bigint AS failed
    FROM usage_hours WHERE account_id = asked.id AND hour >= $2) sums
WHERE asked.id = ANY($1::uuid[])
"""
_BY_VOLUME: Final = """
SELECT asked.id, sums.accepted::float8 AS rank
FROM unnest(:account_ids::uuid[]) asked(id)
CROSS JOIN LATERAL (
    SELECT sum(accepted) AS accepted FROM {table} WHERE account_id = asked.id AND {key} >= :since) sums
WHERE sums.accepted > 0 ORDER BY rank DESC, asked.id LIMIT :limit
"""
_BY_REPUTATION: Final = f"""
SELECT asked.id, sums.undelivered::float8 / sums.accepted::float8 AS rank
FROM unnest(:account_ids::uuid[]) asked(id)
CROSS JOIN LATERAL (
    SELECT sum(accepted) AS accepted, sum(bounced + failed) AS undelivered
    FROM {{table}} WHERE account_id = asked.id AND {{key}} >= :since) sums
WHERE sums.accepted >= {REPUTATION_RECIPIENTS_MIN} AND sums.undelivered > 0
ORDER BY rank DESC, asked.id LIMIT :limit
"""
_VOLUME_BY_DAYS: Final = statement(_BY_VOLUME.format(table="usage_days", key="day"))
_VOLUME_BY_HOURS: Final = statement(_BY_VOLUME.format(table="usage_hours", key="hour"))
_REPUTATION_BY_DAYS: Final = statement(_BY_REPUTATION.format(table="usage_days", key="day"))
_REPUTATION_BY_HOURS: Final = statement(_BY_REPUTATION.format(table="usage_hours", key="hour"))
# Recipients a day: the mean of the days before today, or today's number if that is already higher.
_PACE: Final = f"""
SELECT greatest(coalesce(sum(accepted::float8) FILTER (WHERE day < :today), 0) / {PACE_DAYS},
    sum(accepted::float8) FILTER (WHERE day >= :today)) AS per_day
FROM usage_days WHERE account_id = asked.id AND day >= :since
"""
_PACES: Final = statement(f"""
SELECT asked.id, pace.per_day FROM unnest(:account_ids::uuid[]) asked(id) CROSS JOIN LATERAL ({_PACE}) pace
""")
_FEWEST_DAYS_LEFT: Final = statement(f"""
SELECT asked.id, -(asked.available / pace.per_day) AS rank
FROM accounts asked
CROSS JOIN LATERAL ({_PACE}) pace
WHERE asked.id = ANY(:account_ids::uuid[]) AND asked.suspended_at IS NULL
    AND pace.per_day > 0 AND asked.available < pace.per_day * {CREDIT_DAYS_FAR}
ORDER BY rank DESC, asked.id LIMIT :limit
""")
# The same as `send_quota.warmup_reading`; after the last day of a warm-up the array has no number.
_MOST_WARMUP_USED: Final = statement("""
SELECT id, used::float8 / allowed AS rank
FROM (
    SELECT id,
        CASE WHEN warmup_day >= :today::date THEN warmup_used
            ELSE (warmup_ahead ->> to_char(:today, 'YYYY-MM-DD'))::bigint END AS used,
        (coalesce(warmup_limits, :default_limits::integer[]))[
            greatest(1, greatest(:today, warmup_day) - coalesce(warmup_started_on, :today) + 1)] AS allowed
    FROM accounts
    WHERE id = ANY(:account_ids::uuid[]) AND suspended_at IS NULL AND NOT warmup_exempt) asked
WHERE used > 0 AND allowed > 0 ORDER BY rank DESC, id LIMIT :limit
""")
# Ids begin with the time.
_NEW: Final = "SELECT id AS account_id FROM accounts ORDER BY id DESC LIMIT $1"


async def of_accounts(
    connection: Connection, account_ids: Sequence[AccountId], since: datetime
) -> Mapping[AccountId, AccountFigures]:
    """The figures of live mail that was accepted since the beginning of an hour."""
    rows = await connection.fetch(_FIGURES, account_ids, since, lowest_id(since))
    return {
        row["id"]: AccountFigures(row["reputation_warned_at"], row["erased"], UsageCounts(*tuple(row)[3:]))
        for row in rows
    }


async def newest(connection: Connection, count: int) -> list[AccountId]:
    return [row["account_id"] for row in await connection.fetch(_NEW, count)]


async def first_of_days(
    connection: Connection, order: AccountOrder, account_ids: Sequence[AccountId], since: date, count: int
) -> list[RankedAccount]:
    """Of these accounts, those with the most mail, or with the largest share that was not delivered."""
    is_by_volume = order is AccountOrder.VOLUME
    query = (_VOLUME_BY_DAYS if is_by_volume else _REPUTATION_BY_DAYS).bind(
        account_ids=account_ids, since=since, limit=count
    )
    return [RankedAccount(*row) for row in await connection.fetch(*query)]


async def first_of_hours(
    connection: Connection, order: AccountOrder, account_ids: Sequence[AccountId], since: datetime, count: int
) -> list[AccountId]:
    """As `first_of_days`; an account has a row for each hour."""
    is_by_volume = order is AccountOrder.VOLUME
    query = (_VOLUME_BY_HOURS if is_by_volume else _REPUTATION_BY_HOURS).bind(
        account_ids=account_ids, since=since, limit=count
    )
    return [row["id"] for row in await connection.fetch(*query)]


async def paces(connection: Connection, account_ids: Sequence[AccountId], today: date) -> Mapping[AccountId, float]:
    """How many recipients a day each of them sends to."""
    rows = await connection.fetch(*_PACES.bind(account_ids=account_ids, today=today, since=_pace_since(today)))
    return {row["id"]: row["per_day"] for row in rows}


async def fewest_days_left(
    connection: Connection, account_ids: Sequence[AccountId], today: date, count: int
) -> list[RankedAccount]:
    """Of these accounts, those whose credits last for the fewest days."""
    query = _FEWEST_DAYS_LEFT.bind(account_ids=account_ids, today=today, since=_pace_since(today), limit=count)
    return [RankedAccount(*row) for row in await connection.fetch(*query)]


async def most_warmup_used(
    connection: Connection,
    account_ids: Sequence[AccountId],
    today: date,
    default_limits: Sequence[int] | None,
    count: int,
) -> list[RankedAccount]:
    """Of these accounts, those that have used the most of today's warm-up; `default_limits` apply without own ones."""
    query = _MOST_WARMUP_USED.bind(account_ids=account_ids, today=today, default_limits=default_limits, limit=count)
    return [RankedAccount(*row) for row in await connection.fetch(*query)]


def _pace_since(today: date) -> date:
    return today - timedelta(days=PACE_DAYS)
