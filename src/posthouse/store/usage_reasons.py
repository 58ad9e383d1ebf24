"""The reasons of bounces, failures and deferrals: found among new events, counted by day, and read.

Bounces and failures are counted when they are final, and so are the deferrals before a final result. Deferrals of
recipients that are not final yet are looked up.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Final, NamedTuple

from posthouse.rules import usage
from posthouse.rules.delivery_reason import DeliveryReason
from posthouse.rules.ids import AccountId, MessageId, lowest_id
from posthouse.rules.usage import ReasonCount, ReasonKey
from posthouse.store import backlog
from posthouse.store.postgres import Connection, row_count
from posthouse.store.statement import statement

# More attempts than a recipient can have: the rest are postponements.
_ATTEMPTS_READ_MAX: Final = 200
# How many open recipients are examined, as many as `waiting` counts, and how many of the deferred ones are read.
_DEFERRED_READ_MAX: Final = 1_000
SHOWN_MAX: Final = 200
_REASONS: Final = frozenset(DeliveryReason)


class Trouble(NamedTuple):
    """How many recipients of one account, of mail accepted on one day, had this result with this reply."""

    account_id: AccountId
    day: date
    result: str
    mx_host: str | None
    code: int | None
    response: str | None
    times: int
    example_id: MessageId


# The part of a reply that decides its reason.
_FOUND: Final = statement(f"""
SELECT asked.account_id, trouble.*
FROM unnest(:account_ids::uuid[]) asked(account_id)
CROSS JOIN LATERAL (
    SELECT (to_timestamp(('x' || left(replace(event.message_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)
                AT TIME ZONE 'UTC')::date AS day,
           said.result, said.mx_host, said.code, left(said.response, 400) AS response, count(*),
           (array_agg(event.message_id ORDER BY event.message_id DESC))[1] AS example_id
    FROM (
        SELECT message_id, position, type FROM events
        WHERE account_id = asked.account_id AND id >= :lowest AND id < :before AND message_id IS NOT NULL) event
    CROSS JOIN LATERAL (
        SELECT id FROM messages
        WHERE account_id = asked.account_id AND id = event.message_id AND credits_reserved > 0 LIMIT 1) message
    CROSS JOIN LATERAL (
        SELECT outcome AS result, mx_host, code, response
        FROM (
            SELECT outcome, mx_host, code, response FROM attempts
            WHERE account_id = asked.account_id AND message_id = event.message_id AND position = event.position
            ORDER BY fence DESC LIMIT {_ATTEMPTS_READ_MAX}) tried
        WHERE outcome = 'deferred'
        UNION ALL
        SELECT status,
            (SELECT mx_host FROM attempts
             WHERE account_id = asked.account_id AND message_id = event.message_id AND position = event.position
             ORDER BY fence DESC LIMIT 1),
            last_smtp_code, last_smtp_response
        FROM recipients
        WHERE account_id = asked.account_id AND message_id = event.message_id AND position = event.position
          AND event.type <> 'email.delivered') said
    GROUP BY 1, 2, 3, 4, 5) trouble
""")

_KNOWN: Final = """
SELECT account_id, kept.day, provider, result, code, reason
FROM unnest($1::uuid[], $2::date[]) asked(account_id, day)
JOIN usage_reasons kept USING (account_id, day)
"""
_ADD: Final = statement("""
INSERT INTO usage_reasons AS kept (account_id, day, provider, result, code, reason, count, example_id)
SELECT * FROM unnest(:account_ids::uuid[], :days::date[], :providers::text[], :results::text[], :codes::text[],
    :reasons::text[], :counts::bigint[], :example_ids::uuid[])
ORDER BY 1, 2, 3, 4, 5, 6
ON CONFLICT (account_id, day, provider, result, code, reason) DO UPDATE SET count = kept.count + excluded.count,
    example_id = greatest(kept.example_id, excluded.example_id)
""")
_FORGET: Final = """
DELETE FROM usage_reasons WHERE ctid = ANY(ARRAY(SELECT ctid FROM usage_reasons WHERE day < $1 ORDER BY day LIMIT $2))
"""

_OF_DAYS: Final = """
SELECT provider, result, code, reason, sum(count)::bigint, (array_agg(example_id ORDER BY example_id DESC))[1]
FROM usage_reasons WHERE account_id = $1 AND day >= $2 AND day <= $3
GROUP BY 1, 2, 3, 4 ORDER BY 5 DESC, 1, 2, 3, 4 LIMIT $4
"""
_DEFERRED_NOW: Final = f"""
SELECT said.mx_host, said.code, said.response, count(*), (array_agg(open.message_id ORDER BY open.message_id DESC))[1]
FROM (
    SELECT message_id, position
    FROM (
        SELECT message_id, position, attempt_count FROM delivery_schedule WHERE account_id = $1
        ORDER BY message_id, position LIMIT {backlog.COUNTED_MAX}) first_rows
    WHERE attempt_count > 0 LIMIT {_DEFERRED_READ_MAX}) open
CROSS JOIN LATERAL (
    SELECT FROM messages WHERE account_id = $1 AND id = open.message_id AND credits_reserved > 0 LIMIT 1) message
CROSS JOIN LATERAL (
    SELECT mx_host, code, left(response, 400) AS response FROM attempts
    WHERE account_id = $1 AND message_id = open.message_id AND position = open.position AND outcome = 'deferred'
    ORDER BY fence DESC LIMIT 1) said
GROUP BY 1, 2, 3
"""


async def found(
    connection: Connection, account_ids: Sequence[AccountId], low: datetime, high: datetime
) -> list[Trouble]:
    """The troubles in the events between the two ids, whenever their mail was accepted, without test mail."""
    rows = await connection.fetch(*_FOUND.bind(account_ids=account_ids, lowest=lowest_id(low), before=lowest_id(high)))
    return [Trouble(*row) for row in rows]


async def add(tx: Connection, troubles: Iterable[Trouble]) -> None:
    """Only one transaction at a time adds: the one that holds the counter's progress."""
    by_day: defaultdict[tuple[AccountId, date], dict[ReasonKey, ReasonCount]] = defaultdict(dict)
    for trouble in troubles:
        counts = by_day[trouble.account_id, trouble.day]
        key = usage.reason_key(trouble.result, trouble.mx_host, trouble.code, trouble.response)
        counts[key] = usage.count_sum(counts.get(key), ReasonCount(trouble.times, trouble.example_id))
    if not by_day:
        return
    known: defaultdict[tuple[AccountId, date], set[ReasonKey]] = defaultdict(set)
    asked = [account_id for account_id, _ in by_day], [day for _, day in by_day]
    for account_id, day, provider, result, code, reason in await tx.fetch(_KNOWN, *asked):
        known[account_id, day].add(ReasonKey(provider, result, code, _known(reason)))
    rows = [
        (*account_day, *key, *count)
        for account_day, counts in by_day.items()
        for key, count in usage.bounded_counts(known[account_day], counts).items()
    ]
    account_ids, days, providers, results, codes, reasons, counted, example_ids = zip(*rows, strict=True)
    await tx.execute(
        *_ADD.bind(
            account_ids=account_ids,
            days=days,
            providers=providers,
            results=results,
            codes=codes,
            reasons=reasons,
            counts=counted,
            example_ids=example_ids,
        )
    )


async def forget(tx: Connection, before: date, limit: int) -> int:
    """Returns how many rows were deleted."""
    return row_count(await tx.execute(_FORGET, before, limit))


async def of_days(
    connection: Connection, account_id: AccountId, first: date, last: date
) -> list[tuple[ReasonKey, ReasonCount]]:
    """The most frequent first; one more than is shown, if there are more."""
    rows = await connection.fetch(_OF_DAYS, account_id, first, last, SHOWN_MAX + 1)
    return [
        (ReasonKey(provider, result, code, _known(reason)), ReasonCount(count, example_id))
        for provider, result, code, reason, count, example_id in rows
    ]


def _known(reason: str) -> DeliveryReason:
    """The known reason of this name; a newer version may have stored others."""
    return DeliveryReason(reason) if reason in _REASONS else DeliveryReason.OTHER


async def deferred_now(tx: Connection, account_id: AccountId) -> Mapping[ReasonKey, ReasonCount]:
    """The deferred recipients among the oldest mail that is not final, by their last reply."""
    await backlog.disable_bitmap_scans(tx)
    counts: dict[ReasonKey, ReasonCount] = {}
    for mx_host, code, response, count, example_id in await tx.fetch(_DEFERRED_NOW, account_id):
        key = usage.reason_key("deferred", mx_host, code, response)
        counts[key] = usage.count_sum(counts.get(key), ReasonCount(count, example_id))
    return counts
