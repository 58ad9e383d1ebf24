"""The log of webhook deliveries: found by filters, every attempt of a delivery, what failed sent again, the last day.

An account may have millions of rows in its log, and no index leads to those of a status: it would cost every attempt
that is recorded. So each statement examines a bounded number of rows, in the order of their ids, and returns how far
it came.
"""

import json
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId, lowest_id, time_of
from posthouse.rules.webhook_filters import WebhookFilters
from posthouse.store.delivery_schedule import columns
from posthouse.store.postgres import Connection, required
from posthouse.store.statement import statement
from posthouse.store.webhooks import DELIVERY_COLUMNS, WebhookDelivery, with_bodies

EXAMINED_MAX: Final = 10_000
REPLAYED_AT_ONCE_MAX: Final = 1_000
# Deliveries from which the health of an endpoint is computed.
HEALTH_EXAMINED_MAX: Final = 5_000


class LogStep(NamedTuple):
    """Ids that were found, in the order of the search, and where to search on; None at the end."""

    ids: Sequence[UUID]
    position: UUID | None


@dataclass(frozen=True, slots=True)
class WebhookAttempt:
    """One call. `response_body` is the beginning of the answer, None without an answer."""

    at: datetime
    http_status: int | None
    duration_ms: int | None
    error: str | None
    response_body: bytes | None
    response_truncated: bool


@dataclass(frozen=True, slots=True)
class EndpointHealth:
    """The calls since then: of a day, or of the newest deliveries where a day has more than are examined."""

    since: datetime
    calls: int
    failures: int
    p50_ms: int | None
    p95_ms: int | None


class FailedDelivery(NamedTuple):
    id: UUID
    event_id: UUID
    type: str
    message_id: MessageId | None
    position: int | None


_SEARCH: Final = statement("""
WITH examined AS MATERIALIZED (
    SELECT id, status, type, endpoint_id FROM webhook_deliveries
    WHERE account_id = :account_id AND id >= :lowest AND id < :before ORDER BY id DESC LIMIT :examined_max
)
SELECT (SELECT count(*) FROM examined) AS examined, (SELECT id FROM examined ORDER BY id LIMIT 1) AS reached,
    ARRAY(SELECT id FROM examined
          WHERE endpoint_id IS NOT DISTINCT FROM :endpoint_id
            AND (:status::text IS NULL OR status = :status) AND (:type::text IS NULL OR type = :type)
          ORDER BY id DESC LIMIT :limit) AS ids
""")
_BY_IDS: Final = statement(f"""
SELECT {DELIVERY_COLUMNS} FROM webhook_deliveries
WHERE account_id = :account_id AND id = ANY(:ids::uuid[]) AND id >= :lowest AND id <= :highest ORDER BY id DESC
""")
_OF_MESSAGE: Final = statement("""
SELECT id FROM webhook_deliveries
WHERE account_id = :account_id AND message_id = :message_id AND id >= :lowest AND id < :before
  AND endpoint_id IS NOT DISTINCT FROM :endpoint_id
  AND (:status::text IS NULL OR status = :status) AND (:type::text IS NULL OR type = :type)
ORDER BY id DESC LIMIT :limit
""")
_FAILED_ATTEMPTS: Final = "SELECT failed_attempts FROM webhook_deliveries WHERE account_id = $1 AND id = $2"

_LOCK_REPLAY: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('posthouse.replay:' || $1::text, 0))"
# The last delivery of each event, if it failed and the event is stored: after a replay, that is the last. The check of
# the status holds even if a clock was set back between the two.
_FAILED: Final = statement("""
WITH examined AS MATERIALIZED (
    SELECT id, event_id, type, message_id, position, status, endpoint_id FROM webhook_deliveries
    WHERE account_id = :account_id AND id > :after AND id < :before ORDER BY id LIMIT :examined_max
)
SELECT id, event_id, type, message_id, position, is_replayed FROM (
    SELECT *, message_id IS NOT NULL AND status = 'failed' AND endpoint_id IS NULL
        AND NOT EXISTS (
            SELECT FROM webhook_deliveries other
            WHERE other.account_id = :account_id AND other.message_id = examined.message_id
              AND other.event_id = examined.event_id AND other.id <> examined.id AND other.endpoint_id IS NULL
              AND (other.id > examined.id OR other.status <> 'failed'))
        AND EXISTS (SELECT FROM events WHERE account_id = :account_id AND id = examined.event_id
                      AND position('"erased":true'::bytea IN body) = 0) AS is_replayed
    FROM examined) found
ORDER BY id
""")
# The same for an endpoint, whose events may be about no mail: those are compared with one more statement.
_FAILED_OF_ENDPOINT: Final = statement("""
WITH examined AS MATERIALIZED (
    SELECT id, event_id, type, message_id, position, status, endpoint_id FROM webhook_deliveries
    WHERE account_id = :account_id AND id > :after AND id < :before ORDER BY id LIMIT :examined_max
)
SELECT id, event_id, type, message_id, position, is_replayed FROM (
    SELECT *, status = 'failed' AND endpoint_id IS NOT DISTINCT FROM :endpoint_id AND type <> 'webhook.test'
        AND NOT EXISTS (
            SELECT FROM webhook_deliveries other
            WHERE other.account_id = :account_id AND other.message_id = examined.message_id
              AND other.event_id = examined.event_id AND other.id <> examined.id AND other.endpoint_id = :endpoint_id
              AND (other.id > examined.id OR other.status <> 'failed'))
        AND EXISTS (SELECT FROM endpoint_events WHERE account_id = :account_id AND id = examined.event_id
                      AND position('"erased":true'::bytea IN body) = 0) AS is_replayed
    FROM examined) found
ORDER BY id
""")
_LAST_ABOUT_NO_MAIL: Final = """
SELECT DISTINCT ON (event_id) event_id, id FROM webhook_deliveries
WHERE account_id = $1 AND id >= $2 AND message_id IS NULL AND endpoint_id = $3 AND event_id = ANY($4::uuid[])
ORDER BY event_id, id DESC
"""
_REPLAY: Final = statement("""
WITH wanted AS MATERIALIZED (
    SELECT given.*, endpoint.url
    FROM unnest(:ids::uuid[], :replays_of::uuid[], :event_ids::uuid[], :types::text[], :message_ids::uuid[],
        :positions::smallint[]) given(id, replay_of, event_id, type, message_id, position)
    CROSS JOIN LATERAL (SELECT url FROM webhook_endpoints WHERE account_id = :account_id AND enabled LIMIT 1) endpoint
), due AS (
    INSERT INTO calls (account_id, id, event_id, next_at, due_at, max_attempts, trace)
    SELECT :account_id, id, event_id, :now, :now, :max_attempts,
        (SELECT trace FROM messages WHERE account_id = :account_id AND id = wanted.message_id)
    FROM wanted
)
INSERT INTO webhook_deliveries (account_id, id, event_id, type, message_id, position, url, max_attempts, replay_of,
    created_at, next_attempt_at)
SELECT :account_id, id, event_id, type, message_id, position, url, :max_attempts, replay_of, :now, :now FROM wanted
RETURNING 1
""")
_HEALTH: Final = statement("""
WITH examined AS MATERIALIZED (
    SELECT id, status, last_attempt_at, duration_ms, failed_attempts, endpoint_id FROM webhook_deliveries
    WHERE account_id = :account_id AND id >= :lowest ORDER BY id DESC LIMIT :examined_max
), called AS (
    SELECT last_attempt_at AS at, duration_ms, true AS is_taken FROM examined
    WHERE status = 'succeeded' AND endpoint_id IS NOT DISTINCT FROM :endpoint_id
    UNION ALL
    SELECT (attempt->>'at')::timestamptz, (attempt->>'duration_ms')::integer, false
    FROM examined CROSS JOIN LATERAL jsonb_array_elements(failed_attempts) attempt
    WHERE endpoint_id IS NOT DISTINCT FROM :endpoint_id
)
SELECT count(*) AS calls, count(*) FILTER (WHERE NOT is_taken) AS failures,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY duration_ms) AS p50_ms,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY duration_ms) AS p95_ms,
    (SELECT count(*) FROM examined) AS examined, (SELECT id FROM examined ORDER BY id LIMIT 1) AS oldest
FROM called WHERE at >= :since
""")


async def search(
    connection: Connection, account_id: AccountId, filters: WebhookFilters, limit: int, endpoint_id: UUID | None = None
) -> LogStep:
    """The newest that match, of as many rows as one step examines."""
    row = required(
        await connection.fetchrow(
            *_SEARCH.bind(
                account_id=account_id,
                lowest=filters.lowest,
                before=filters.before,
                status=filters.status,
                type=filters.type,
                endpoint_id=endpoint_id,
                limit=limit,
                examined_max=EXAMINED_MAX,
            )
        )
    )
    return LogStep(row["ids"], row["reached"] if row["examined"] == EXAMINED_MAX else None)


async def of_message(
    connection: Connection,
    account_id: AccountId,
    message_id: MessageId,
    filters: WebhookFilters,
    limit: int,
    endpoint_id: UUID | None = None,
) -> list[UUID]:
    """The newest of a message that match."""
    rows = await connection.fetch(
        *_OF_MESSAGE.bind(
            account_id=account_id,
            message_id=message_id,
            lowest=filters.lowest,
            before=filters.before,
            status=filters.status,
            type=filters.type,
            endpoint_id=endpoint_id,
            limit=limit,
        )
    )
    return [row["id"] for row in rows]


async def by_ids(
    connection: Connection, account_id: AccountId, ids: Sequence[UUID], endpoint_id: UUID | None = None
) -> list[WebhookDelivery]:
    """The newest first."""
    if not ids:
        return []
    rows = await connection.fetch(
        *_BY_IDS.bind(account_id=account_id, ids=list(ids), lowest=min(ids), highest=max(ids))
    )
    return await with_bodies(connection, account_id, rows, endpoint_id)


async def attempts_of(connection: Connection, delivery: WebhookDelivery) -> list[WebhookAttempt]:
    """Every call that was recorded, the oldest first."""
    stored: str | None = await connection.fetchval(_FAILED_ATTEMPTS, delivery.account_id, delivery.id)
    attempts = [_attempt(entry) for entry in json.loads(stored or "[]")]
    last_at = delivery.last_attempt_at
    # A success is in the columns alone, and so is what a process of the version before recorded.
    if last_at is not None and last_at not in [attempt.at for attempt in attempts]:
        attempts.append(
            WebhookAttempt(
                last_at,
                delivery.http_status,
                delivery.duration_ms,
                delivery.error,
                delivery.response_body,
                delivery.response_truncated,
            )
        )
    return attempts


async def try_lock_replay(tx: Connection, account_id: AccountId) -> bool:
    """Whether this transaction alone replays for the account, until its end."""
    return bool(await tx.fetchval(_LOCK_REPLAY, str(account_id)))


async def failed(
    connection: Connection, account_id: AccountId, after: UUID, before: UUID
) -> tuple[list[FailedDelivery], UUID | None]:
    """What failed and was not sent again, the oldest first, of as many rows as one step examines; and where to go on.

    Tests are left out: each was for its moment.
    """
    rows = await connection.fetch(
        *_FAILED.bind(account_id=account_id, after=after, before=before, examined_max=REPLAYED_AT_ONCE_MAX)
    )
    found = [FailedDelivery(*tuple(row)[:5]) for row in rows if row["is_replayed"]]
    return found, rows[-1]["id"] if len(rows) == REPLAYED_AT_ONCE_MAX else None


async def failed_of_endpoint(
    connection: Connection, account_id: AccountId, endpoint_id: UUID, after: UUID, before: UUID
) -> tuple[list[FailedDelivery], UUID | None]:
    """As `failed`, of an endpoint."""
    rows = await connection.fetch(
        *_FAILED_OF_ENDPOINT.bind(
            account_id=account_id,
            endpoint_id=endpoint_id,
            after=after,
            before=before,
            examined_max=REPLAYED_AT_ONCE_MAX,
        )
    )
    found = [FailedDelivery(*tuple(row)[:5]) for row in rows if row["is_replayed"]]
    about_no_mail = [each for each in found if each.message_id is None]
    if about_no_mail:
        of_events = [each.event_id for each in about_no_mail]
        last = await connection.fetch(_LAST_ABOUT_NO_MAIL, account_id, about_no_mail[0].id, endpoint_id, of_events)
        last_ids = {row["id"] for row in last}
        found = [each for each in found if each.message_id is not None or each.id in last_ids]
    return found, rows[-1]["id"] if len(rows) == REPLAYED_AT_ONCE_MAX else None


async def enter_replays(
    tx: Connection,
    account_id: AccountId,
    replays: Sequence[tuple[UUID, FailedDelivery]],
    max_attempts: int,
    now: datetime,
) -> int:
    """The same events once more, each under a new id, due now. 0 when there is no enabled endpoint."""
    if not replays:
        return 0
    originals, event_ids, types, message_ids, positions = columns([original for _, original in replays])
    rows = await tx.fetch(
        *_REPLAY.bind(
            account_id=account_id,
            ids=[replay_id for replay_id, _ in replays],
            replays_of=originals,
            event_ids=event_ids,
            types=types,
            message_ids=message_ids,
            positions=positions,
            max_attempts=max_attempts,
            now=now,
        )
    )
    return len(rows)


async def health(
    connection: Connection,
    account_id: AccountId,
    since: datetime,
    created_from: datetime,
    endpoint_id: UUID | None = None,
) -> EndpointHealth:
    """The calls since then, of deliveries that were created after `created_from`."""
    row = required(
        await connection.fetchrow(
            *_HEALTH.bind(
                account_id=account_id,
                since=since,
                lowest=lowest_id(created_from),
                endpoint_id=endpoint_id,
                examined_max=HEALTH_EXAMINED_MAX,
            )
        )
    )
    is_whole = row["examined"] < HEALTH_EXAMINED_MAX
    return EndpointHealth(
        since if is_whole else max(since, time_of(row["oldest"])),
        row["calls"],
        row["failures"],
        row["p50_ms"],
        row["p95_ms"],
    )


def _attempt(entry: dict[str, Any]) -> WebhookAttempt:
    """As `webhook_schedule` wrote it."""
    return WebhookAttempt(
        at=datetime.fromisoformat(entry["at"]),
        http_status=entry["http_status"],
        duration_ms=entry["duration_ms"],
        error=entry["error"],
        response_body=None if entry["body"] is None else b64decode(entry["body"]),
        response_truncated=entry["truncated"],
    )
