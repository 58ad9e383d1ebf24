"""The log of webhook deliveries: searches, the attempts of a delivery, failed ones, the last day; and its end.

The schedule of deliveries is the table `webhook_schedule`. Where the schedule and the log are changed together, the
schedule's rows are locked first, in the order of their keys. An endpoint may have more rows in its log, and more
pending, than one transaction should change: `cancel_pending` and `forget` are called until nothing is left.

An account may have millions of rows in its log, and there is no index by status: it would add a cost to every recorded
attempt. So each statement examines a bounded number of rows, in the order of their ids, and returns how far it came.
"""

import json
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

from posthouse.rules.endpoint import WebhookFilters
from posthouse.rules.ids import AccountId, MessageId, lowest_id, recipient_id, time_of
from posthouse.store.delivery_schedule import columns
from posthouse.store.postgres import Connection, Row, required
from posthouse.store.statement import statement
from posthouse.store.webhook_schedule import DISABLED, event_body

EXAMINED_MAX: Final = 10_000
REPLAYED_BATCH_MAX: Final = 1_000
# Deliveries from which the health of an endpoint is computed.
HEALTH_EXAMINED_MAX: Final = 5_000
# How much of a body the log shows; all of it is stored with its event.
BODY_SHOWN_BYTES_MAX: Final = 2_048
CHANGED_BATCH_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """A delivery of an event, after its last attempt; `next_attempt_at` is None once it is final.

    `url` is the URL of the last attempt, or of the first one to come. `request_body` is the beginning of the sent body;
    None if the event is no longer stored, so that the delivery can't be replayed.
    """

    account_id: AccountId
    id: UUID
    event_id: UUID
    endpoint_id: UUID
    type: str
    message_id: MessageId | None
    position: int | None
    url: str
    status: str
    attempt: int
    max_attempts: int
    http_status: int | None
    error: str | None
    duration_ms: int | None
    response_body: bytes | None
    response_truncated: bool
    replay_of: UUID | None
    created_at: datetime
    last_attempt_at: datetime | None
    next_attempt_at: datetime | None
    request_body: bytes | None
    request_truncated: bool

    @property
    def is_of_webhook(self) -> bool:
        return self.endpoint_id == self.account_id

    @property
    def recipient_id(self) -> UUID | None:
        return (
            None if self.message_id is None or self.position is None else recipient_id(self.message_id, self.position)
        )

    @property
    def is_truncated(self) -> bool:
        """Whether either body is longer than shown."""
        return self.request_truncated or self.response_truncated

    @property
    def is_stored(self) -> bool:
        """Whether its event can be sent again."""
        return self.request_body is not None and b'"erased":true' not in self.request_body


class LogStep(NamedTuple):
    """Ids that were found, in the order of the search, and where to continue; None at the end."""

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
    """The calls since then: of a day, or of the newest deliveries if a day has more than are examined."""

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


_DELIVERY: Final = """
account_id, id, event_id, endpoint_id, type, message_id, position, url, status, attempt, max_attempts, http_status,
error, duration_ms, response_body, response_truncated, replay_of, created_at, last_attempt_at, next_attempt_at
"""

# Nothing is cancelled for an enabled endpoint, nor a delivery that is being sent at this moment.
_LOCK_PENDING: Final = """
SELECT id, ctid AS place, attempt_count FROM webhook_schedule
WHERE account_id = $1 AND endpoint_id = $2 AND worker_id IS NULL
  AND NOT EXISTS (SELECT FROM endpoints WHERE account_id = $1 AND id = $2 AND enabled)
ORDER BY id LIMIT $3 FOR NO KEY UPDATE
"""
_CANCEL: Final = statement("""
WITH struck AS (
    DELETE FROM webhook_schedule WHERE ctid = ANY(:places::tid[])
)
UPDATE webhook_deliveries SET status = 'failed', error = :error, attempt = given.attempt, next_attempt_at = NULL
FROM (
    SELECT place, place_id, asked.attempt
    FROM unnest(:ids::uuid[], :attempts::smallint[]) asked(id, attempt)
    CROSS JOIN LATERAL (
        SELECT ctid AS place, id AS place_id FROM webhook_deliveries
        WHERE account_id = :account_id AND id = asked.id AND id >= :lowest AND id <= :highest LIMIT 1) delivery) given
WHERE webhook_deliveries.ctid = given.place AND webhook_deliveries.id = given.place_id
""")
_OLDEST: Final = """
SELECT id FROM webhook_deliveries
WHERE account_id = $1 AND endpoint_id = $2
  AND NOT EXISTS (SELECT FROM endpoints WHERE account_id = $1 AND id = $2 AND enabled)
ORDER BY id LIMIT $3
"""
_LOCK_RANGE: Final = """
SELECT ctid AS place FROM webhook_schedule WHERE account_id = $1 AND endpoint_id = $2 AND id >= $3 AND id <= $4
ORDER BY id FOR NO KEY UPDATE
"""
_DELETE_SCHEDULED: Final = "DELETE FROM webhook_schedule WHERE ctid = ANY($1::tid[])"
_FORGET: Final = """
DELETE FROM webhook_deliveries WHERE account_id = $1 AND endpoint_id = $2 AND id >= $3 AND id <= $4
"""

_BY_ID: Final = f"SELECT {_DELIVERY} FROM webhook_deliveries WHERE account_id = $1 AND id = $2"
# Only the beginning of a body is shown.
_BODIES: Final = statement(f"""
SELECT asked.id, substring(event.body FROM 1 FOR :shown_bytes_max) AS body,
    octet_length(event.body) > :shown_bytes_max AS is_cut
FROM unnest(:event_ids::uuid[]) asked(id)
CROSS JOIN LATERAL ({event_body(":account_id", ":endpoint_id", "asked.id")}) event
""")
_SEARCH: Final = statement("""
WITH examined AS MATERIALIZED (
    SELECT id, status, type, endpoint_id FROM webhook_deliveries
    WHERE account_id = :account_id AND id >= :lowest AND id < :before ORDER BY id DESC LIMIT :examined_max
)
SELECT (SELECT count(*) FROM examined) AS examined, (SELECT id FROM examined ORDER BY id LIMIT 1) AS reached,
    ARRAY(SELECT id FROM examined
          WHERE endpoint_id = :endpoint_id
            AND (:status::text IS NULL OR status = :status) AND (:type::text IS NULL OR type = :type)
          ORDER BY id DESC LIMIT :limit) AS ids
""")
_BY_IDS: Final = statement(f"""
SELECT {_DELIVERY} FROM webhook_deliveries
WHERE account_id = :account_id AND id = ANY(:ids::uuid[]) AND id >= :lowest AND id <= :highest ORDER BY id DESC
""")
_OF_MESSAGE: Final = statement("""
SELECT id FROM webhook_deliveries
WHERE account_id = :account_id AND message_id = :message_id AND id >= :lowest AND id < :before
  AND endpoint_id = :endpoint_id
  AND (:status::text IS NULL OR status = :status) AND (:type::text IS NULL OR type = :type)
ORDER BY id DESC LIMIT :limit
""")
_FAILED_ATTEMPTS: Final = "SELECT failed_attempts FROM webhook_deliveries WHERE account_id = $1 AND id = $2"

_LOCK_REPLAY: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('posthouse.replay:' || $1::text, 0))"
# The last delivery of each event, if it failed and the event is stored: after a replay, that is the last. The check of
# the status holds even if a clock was set back between the two. Tests are left out: each only mattered at its time.
# Events that are not about a message are compared with one more statement.
_FAILED: Final = statement(f"""
WITH examined AS MATERIALIZED (
    SELECT id, event_id, type, message_id, position, status, endpoint_id FROM webhook_deliveries
    WHERE account_id = :account_id AND id > :after AND id < :before ORDER BY id LIMIT :examined_max
)
SELECT id, event_id, type, message_id, position, is_replayed FROM (
    SELECT *, status = 'failed' AND endpoint_id = :endpoint_id AND type <> 'webhook.test'
        AND NOT EXISTS (
            SELECT FROM webhook_deliveries other
            WHERE other.account_id = :account_id AND other.message_id = examined.message_id
              AND other.event_id = examined.event_id AND other.id <> examined.id AND other.endpoint_id = :endpoint_id
              AND (other.id > examined.id OR other.status <> 'failed'))
        AND EXISTS (SELECT FROM ({event_body(":account_id", ":endpoint_id", "examined.event_id", bounds="")}) event
                    WHERE position('"erased":true'::bytea IN body) = 0) AS is_replayed
    FROM examined) found
ORDER BY id
""")
_LAST_ABOUT_NO_MAIL: Final = """
SELECT DISTINCT ON (event_id) event_id, id FROM webhook_deliveries
WHERE account_id = $1 AND id >= $2 AND message_id IS NULL AND endpoint_id = $3 AND event_id = ANY($4::uuid[])
ORDER BY event_id, id DESC
"""
_HEALTH: Final = statement("""
WITH examined AS MATERIALIZED (
    SELECT id, status, last_attempt_at, duration_ms, failed_attempts, endpoint_id FROM webhook_deliveries
    WHERE account_id = :account_id AND id >= :lowest ORDER BY id DESC LIMIT :examined_max
), called AS (
    SELECT last_attempt_at AS at, duration_ms, true AS is_taken FROM examined
    WHERE status = 'succeeded' AND endpoint_id = :endpoint_id
    UNION ALL
    SELECT (attempt->>'at')::timestamptz, (attempt->>'duration_ms')::integer, false
    FROM examined CROSS JOIN LATERAL jsonb_array_elements(failed_attempts) attempt
    WHERE endpoint_id = :endpoint_id
)
SELECT count(*) AS calls, count(*) FILTER (WHERE NOT is_taken) AS failures,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY duration_ms) AS p50_ms,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY duration_ms) AS p95_ms,
    (SELECT count(*) FROM examined) AS examined, (SELECT id FROM examined ORDER BY id LIMIT 1) AS oldest
FROM called WHERE at >= :since
""")


async def search(
    connection: Connection, account_id: AccountId, filters: WebhookFilters, limit: int, endpoint_id: UUID
) -> LogStep:
    """The newest that match, among the rows that one step examines."""
    asked = {"account_id": account_id, "endpoint_id": endpoint_id, "limit": limit, "examined_max": EXAMINED_MAX}
    row = required(await connection.fetchrow(*_SEARCH.bind(**asked, **asdict(filters))))
    return LogStep(row["ids"], row["reached"] if row["examined"] == EXAMINED_MAX else None)


async def of_message(
    connection: Connection,
    account_id: AccountId,
    message_id: MessageId,
    filters: WebhookFilters,
    limit: int,
    endpoint_id: UUID,
) -> list[UUID]:
    """The newest of a message that match."""
    asked = {"account_id": account_id, "endpoint_id": endpoint_id, "limit": limit, "message_id": message_id}
    return [row["id"] for row in await connection.fetch(*_OF_MESSAGE.bind(**asked, **asdict(filters)))]


async def by_ids(connection: Connection, account_id: AccountId, ids: Sequence[UUID]) -> list[WebhookDelivery]:
    """Deliveries of one endpoint, the newest first."""
    if not ids:
        return []
    rows = await connection.fetch(
        *_BY_IDS.bind(account_id=account_id, ids=list(ids), lowest=min(ids), highest=max(ids))
    )
    return await _with_bodies(connection, account_id, rows)


async def attempts_of(connection: Connection, delivery: WebhookDelivery) -> list[WebhookAttempt]:
    """Every call that was recorded, the oldest first."""
    stored: str | None = await connection.fetchval(_FAILED_ATTEMPTS, delivery.account_id, delivery.id)
    attempts = [_attempt(entry) for entry in json.loads(stored or "[]")]
    last_at = delivery.last_attempt_at
    # A success is only in the columns.
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
    """Try to lock the account's replays until the transaction ends; False if another transaction has the lock."""
    return bool(await tx.fetchval(_LOCK_REPLAY, str(account_id)))


async def failed(
    connection: Connection, account_id: AccountId, endpoint_id: UUID, after: UUID, before: UUID
) -> tuple[list[FailedDelivery], UUID | None]:
    """Failed deliveries that were not sent again, oldest first, among the rows of one step; and where to continue."""
    rows = await connection.fetch(
        *_FAILED.bind(
            account_id=account_id,
            endpoint_id=endpoint_id,
            after=after,
            before=before,
            examined_max=REPLAYED_BATCH_MAX,
        )
    )
    found = [FailedDelivery(*tuple(row)[:5]) for row in rows if row["is_replayed"]]
    about_no_mail = [each for each in found if each.message_id is None]
    if about_no_mail:
        of_events = [each.event_id for each in about_no_mail]
        last = await connection.fetch(_LAST_ABOUT_NO_MAIL, account_id, about_no_mail[0].id, endpoint_id, of_events)
        last_ids = {row["id"] for row in last}
        found = [each for each in found if each.message_id is not None or each.id in last_ids]
    return found, rows[-1]["id"] if len(rows) == REPLAYED_BATCH_MAX else None


async def health(
    connection: Connection,
    account_id: AccountId,
    since: datetime,
    created_from: datetime,
    endpoint_id: UUID,
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


async def find_delivery(connection: Connection, account_id: AccountId, delivery_id: UUID) -> WebhookDelivery | None:
    rows = await connection.fetch(_BY_ID, account_id, delivery_id)
    return next(iter(await _with_bodies(connection, account_id, rows)), None)


async def cancel_pending(
    tx: Connection, account_id: AccountId, endpoint_id: UUID, limit: int = CHANGED_BATCH_MAX
) -> int:
    """Cancel the endpoint's pending deliveries; return how many. If it is `limit`, there may be more.

    A delivery that is being sent at this moment is not touched, but is cancelled if it would have to be sent again.
    Nothing is cancelled while the endpoint is enabled.
    """
    rows = await tx.fetch(_LOCK_PENDING, account_id, endpoint_id, limit)
    if rows:
        ids, places, attempts = columns([tuple(row) for row in rows])
        await tx.execute(
            *_CANCEL.bind(
                account_id=account_id,
                lowest=ids[0],
                highest=ids[-1],
                places=places,
                ids=ids,
                attempts=attempts,
                error=DISABLED,
            )
        )
    return len(rows)


async def forget(tx: Connection, account_id: AccountId, endpoint_id: UUID, limit: int = CHANGED_BATCH_MAX) -> int:
    """Empty the endpoint's log, the oldest first, with pending deliveries; return how many. 0: nothing is left.

    A delivery that is being sent at this moment will not be logged. Nothing is deleted while the endpoint is enabled.
    """
    ids = [row["id"] for row in await tx.fetch(_OLDEST, account_id, endpoint_id, limit)]
    if ids:
        # A range of ids, so that only the partitions of a few days are read.
        part = account_id, endpoint_id, ids[0], ids[-1]
        places = [row["place"] for row in await tx.fetch(_LOCK_RANGE, *part)]
        await tx.execute(_DELETE_SCHEDULED, places)
        await tx.execute(_FORGET, *part)
    return len(ids)


async def _with_bodies(connection: Connection, account_id: AccountId, rows: Sequence[Row]) -> list[WebhookDelivery]:
    """The deliveries of one endpoint, several of which may have the same event.

    With the lowest and the highest id PostgreSQL skips the other days.
    """
    if not rows:
        return []
    ids = list({row["event_id"] for row in rows})
    found = await connection.fetch(
        *_BODIES.bind(
            account_id=account_id,
            endpoint_id=rows[0]["endpoint_id"],
            lowest=min(ids),
            highest=max(ids),
            shown_bytes_max=BODY_SHOWN_BYTES_MAX,
            event_ids=ids,
        )
    )
    bodies = {row["id"]: (row["body"], row["is_cut"]) for row in found}
    deliveries = []
    for row in rows:
        body, is_cut = bodies.get(row["event_id"], (None, False))
        deliveries.append(WebhookDelivery(**row, request_body=body, request_truncated=is_cut))
    return deliveries


def _attempt(entry: dict[str, Any]) -> WebhookAttempt:
    """An attempt in the form that `webhook_schedule` writes."""
    return WebhookAttempt(
        at=datetime.fromisoformat(entry["at"]),
        http_status=entry["http_status"],
        duration_ms=entry["duration_ms"],
        error=entry["error"],
        response_body=None if entry["body"] is None else b64decode(entry["body"]),
        response_truncated=entry["truncated"],
    )
