"""The schedule of webhook deliveries: which events are to be sent, by which worker, and the results.

It works like `delivery_schedule`: a lease and a claim move `next_at` forward, the fence goes up whenever a ticket was
used or has become wrong, attempts are counted at the claim, rows are locked in the order of their keys and changed by
their places. Only the log differs: a webhook delivery is one row, which contains the last attempt that counted, and a
short form of every failed attempt.

The endpoint is read at the claim, so that a new URL or secret applies to all pending deliveries. Recording holds the
lock of the row in `webhook_schedule`, and nothing else writes to the log of a pending webhook delivery.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from operator import itemgetter
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, lowest_id
from posthouse.rules.ticket import WebhookTicket
from posthouse.store.delivery_schedule import RowLocation, columns
from posthouse.store.postgres import Connection, required, storable
from posthouse.store.statement import statement

RECLAIMED_BATCH_MAX: Final = 1_000
# How much is stored of a response, and of our own error text.
RESPONSE_BYTES_MAX: Final = 2_048
ERROR_CHARACTERS_MAX: Final = 500
# How much is stored of each failed attempt: seven of them stay below 10 KB.
ATTEMPT_BODY_BYTES_MAX: Final = 512
DISABLED: Final = "It was cancelled: the webhook endpoint is disabled."
DELETED: Final = "It was cancelled: the webhook endpoint was deleted."
OVERDUE: Final = "It was given up: its attempt was due 3 days ago and could not be made."

# Account, webhook delivery, fence.
WebhookKey = tuple[AccountId, UUID, int]


@dataclass(frozen=True, slots=True)
class ClaimedWebhook:
    """One webhook delivery to be tried, under its own fence.

    `attempt_count` includes this attempt, and any whose worker died before it reported. A delivery that is over, or
    cancelled (`cancelled` says why), is not to be tried: nothing is counted for it, only its end is to be recorded.
    Any other has its URL, sealed secret and body; only a body can be missing, if its event was lost. `answered_at`,
    `failing_since` and `failing_noted_at` are the endpoint's. `trace` is the trace that it belongs to, if it is traced.
    """

    account_id: AccountId
    id: UUID
    event_id: UUID
    endpoint_id: UUID
    fence: int
    attempt_count: int
    max_attempts: int
    is_over: bool
    cancelled: str | None
    url: str | None
    answered_at: datetime | None
    failing_since: datetime | None
    failing_noted_at: datetime | None
    secret_sealed: bytes | None = field(repr=False)
    body: bytes | None = field(repr=False)
    trace: bytes | None
    previous_secret_sealed: bytes | None = field(default=None, repr=False)
    headers_sealed: bytes | None = field(default=None, repr=False)

    @property
    def key(self) -> WebhookKey:
        return self.account_id, self.id, self.fence

    @property
    def is_for_webhook(self) -> bool:
        return self.endpoint_id == self.account_id

    @property
    def is_ping(self) -> bool:
        """A test that the customer asked for: the only delivery with a single attempt."""
        return self.max_attempts == 1


class WebhookResult(StrEnum):
    """The result of a claim. `DEFERRED` is tried again; `POSTPONED` was not an attempt and doesn't count."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEFERRED = "deferred"
    POSTPONED = "postponed"

    @property
    def is_final(self) -> bool:
        return self in (WebhookResult.SUCCEEDED, WebhookResult.FAILED)


@dataclass(frozen=True, slots=True)
class WebhookOutcome:
    """The result of one claim; if it isn't final, it has the time of the next attempt.

    `url` is the URL of the attempt; without it nothing was tried, and the log keeps the previous attempt. `error` is
    our own text; `response_body` is the receiver's, truncated to RESPONSE_BYTES_MAX. `changed_endpoint` is the
    endpoint, if it began to answer or to fail with this attempt.
    """

    account_id: AccountId
    id: UUID
    fence: int
    result: WebhookResult
    next_at: datetime | None = None
    url: str | None = None
    http_status: int | None = None
    error: str | None = None
    duration_ms: int | None = None
    response_body: bytes | None = None
    response_truncated: bool = False
    changed_endpoint: UUID | None = None

    def __post_init__(self) -> None:
        if (self.next_at is None) is not self.result.is_final:
            raise ValueError(f"a final result has no next time, any other has one: {self.result}")
        if (self.url is None) is not (
            self.result is WebhookResult.POSTPONED
        ) and self.result is not WebhookResult.FAILED:
            raise ValueError(f"a result has a URL if and only if there was an attempt: {self.result}")
        if self.result is WebhookResult.SUCCEEDED and not 200 <= (self.http_status or 0) <= 299:
            raise ValueError(f"success is a 2xx: {self.http_status}")

    @property
    def key(self) -> WebhookKey:
        return self.account_id, self.id, self.fence


class RecordedWebhooks(NamedTuple):
    """`counted` outcomes changed their webhook deliveries; `late` ones came after another claim or record."""

    counted: tuple[WebhookOutcome, ...]
    late: tuple[WebhookOutcome, ...]


def event_body(
    account_id: str, endpoint_id: str, event_id: str, *, bounds: str = "AND id >= :lowest AND id <= :highest"
) -> str:
    """A query for the body of an event as this endpoint gets it: the webhook gets those of `events`."""
    event = f"account_id = {account_id} AND id = {event_id} {bounds}"
    return f"""
        (SELECT body FROM events WHERE {event} AND {endpoint_id} = {account_id} LIMIT 1)
        UNION ALL
        (SELECT body FROM endpoint_events WHERE {event} AND {endpoint_id} <> {account_id} LIMIT 1)"""


_LEASE: Final = """
UPDATE webhook_schedule SET next_at = $2, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM webhook_schedule WHERE next_at <= $1 ORDER BY next_at LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING account_id, id, fence, endpoint_id
"""

_RECLAIM: Final = """
UPDATE webhook_schedule SET next_at = $1, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM webhook_schedule
    WHERE worker_id IS NOT NULL AND worker_id <> ALL(ARRAY(SELECT id FROM workers WHERE expires_at > $1))
    LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
"""

_RELEASE_UNKNOWN: Final = statement("""
UPDATE webhook_schedule SET next_at = :now, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM webhook_schedule
    WHERE worker_id = :worker_id AND (account_id, id) NOT IN (SELECT * FROM unnest(:account_ids::uuid[], :ids::uuid[]))
    FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
""")

_LOCK: Final = """
SELECT asked.number, due.*
FROM unnest($1::uuid[], $2::uuid[], $3::integer[]) WITH ORDINALITY asked(account_id, id, fence, number)
CROSS JOIN LATERAL (
    SELECT ctid AS place, event_id, attempt_count, max_attempts, endpoint_id FROM webhook_schedule
    WHERE account_id = asked.account_id AND id = asked.id AND fence = asked.fence
    LIMIT 1 FOR NO KEY UPDATE) due
"""

_POSTPONE: Final = statement("""
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(:places::tid[], :account_ids::uuid[], :ids::uuid[], :next_at::timestamptz[]) asked(place,
        account_id, id, next_at)
), logged AS (
    UPDATE webhook_deliveries SET next_attempt_at = given.next_at
    FROM (
        SELECT delivery.*, asked.next_at FROM asked
        CROSS JOIN LATERAL (
            SELECT ctid AS place, id AS place_id FROM webhook_deliveries
            WHERE account_id = asked.account_id AND id = asked.id AND id >= :lowest
                AND id <= :highest LIMIT 1) delivery) given
    WHERE webhook_deliveries.ctid = given.place AND webhook_deliveries.id = given.place_id
)
UPDATE webhook_schedule SET next_at = asked.next_at, fence = fence + 1, worker_id = NULL
FROM asked WHERE webhook_schedule.ctid = asked.place
""")

_CLAIM: Final = statement(f"""
WITH asked AS MATERIALIZED (
    SELECT due.place, due.is_over, endpoint.*, event.body
    FROM unnest(:places::tid[], :account_ids::uuid[], :event_ids::uuid[], :endpoint_ids::uuid[], :are_over::boolean[])
        due(place, account_id, event_id, endpoint_id, is_over)
    LEFT JOIN LATERAL (
        SELECT enabled, url, secret_sealed, CASE WHEN previous_until > :now THEN previous_secret_sealed END
            AS previous_secret_sealed, headers_sealed, answered_at, failing_since, failing_noted_at
        FROM endpoints WHERE account_id = due.account_id AND id = due.endpoint_id LIMIT 1) endpoint ON true
    LEFT JOIN LATERAL ({event_body("due.account_id", "due.endpoint_id", "due.event_id")}) event
        ON endpoint.enabled AND NOT due.is_over
)
UPDATE webhook_schedule SET fence = fence + 1, worker_id = :worker_id, next_at = :until,
    attempt_count = attempt_count + CASE WHEN asked.enabled AND NOT asked.is_over THEN 1 ELSE 0 END
FROM asked WHERE webhook_schedule.ctid = asked.place
RETURNING account_id, id, event_id, endpoint_id, fence, attempt_count, max_attempts, is_over,
    CASE WHEN enabled IS NULL THEN :deleted::text WHEN NOT enabled THEN :disabled::text END AS cancelled,
    CASE WHEN enabled AND NOT is_over THEN url END AS url, answered_at, failing_since, failing_noted_at,
    CASE WHEN enabled AND NOT is_over THEN secret_sealed END AS secret_sealed, body, trace,
    previous_secret_sealed, headers_sealed
""")

# A log row that was deleted meanwhile stays deleted. A delivery that was only postponed keeps its previous attempt, and
# the time at which it was due.
_RECORD: Final = statement("""
WITH logged AS (
    UPDATE webhook_deliveries SET status = given.status, attempt = given.attempt, next_attempt_at = given.next_at,
        error = CASE WHEN given.url IS NULL AND given.next_at IS NOT NULL
                     THEN coalesce(webhook_deliveries.error, given.error) ELSE given.error END,
        url = coalesce(given.url, webhook_deliveries.url),
        last_attempt_at = CASE WHEN given.url IS NULL THEN last_attempt_at ELSE :now::timestamptz END,
        http_status = CASE WHEN given.url IS NULL THEN webhook_deliveries.http_status ELSE given.http_status END,
        duration_ms = CASE WHEN given.url IS NULL THEN webhook_deliveries.duration_ms ELSE given.duration_ms END,
        response_body = CASE WHEN given.url IS NULL THEN webhook_deliveries.response_body ELSE given.response_body END,
        response_truncated = CASE WHEN given.url IS NULL THEN webhook_deliveries.response_truncated
                                  ELSE given.response_truncated END,
        failed_attempts = CASE WHEN given.failed_attempt IS NULL THEN failed_attempts
                               ELSE coalesce(failed_attempts, '[]') || given.failed_attempt::jsonb END
    FROM (
        SELECT place, place_id, asked.*
        FROM unnest(:account_ids::uuid[], :ids::uuid[], :statuses::text[], :attempts::smallint[],
            :log_next_at::timestamptz[], :urls::text[],
            :http_statuses::smallint[], :errors::text[], :durations_ms::integer[], :response_bodies::bytea[],
                :responses_truncated::boolean[], :failed_attempts::text[])
            asked(account_id, id, status, attempt, next_at, url, http_status, error, duration_ms, response_body,
                response_truncated, failed_attempt)
        CROSS JOIN LATERAL (
            SELECT ctid AS place, id AS place_id FROM webhook_deliveries
            WHERE account_id = asked.account_id AND id = asked.id AND id >= :lowest
                AND id <= :highest LIMIT 1) delivery) given
    WHERE webhook_deliveries.ctid = given.place AND webhook_deliveries.id = given.place_id
), struck AS (
    DELETE FROM webhook_schedule WHERE ctid = ANY(:struck_places::tid[])
    RETURNING 1
), postponed AS (
    UPDATE webhook_schedule SET next_at = later.next_at, fence = fence + 1, worker_id = NULL,
        attempt_count = attempt_count - later.uncounted,
        due_at = CASE WHEN later.uncounted = 0 THEN later.next_at ELSE due_at END
    FROM unnest(:later_places::tid[], :later_next_at::timestamptz[], :uncounted::smallint[]) later(place, next_at,
        uncounted)
    WHERE webhook_schedule.ctid = later.place
    RETURNING 1
)
SELECT (SELECT count(*) FROM struck), (SELECT count(*) FROM postponed)
""")


# The ids narrow it to rows that are old enough.
_END_OVERDUE: Final = statement("""
WITH overdue AS MATERIALIZED (
    SELECT account_id, id, ctid AS place FROM webhook_schedule
    WHERE id < :ids_before AND due_at < :due_before AND worker_id IS NULL
    LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
), logged AS (
    UPDATE webhook_deliveries SET status = 'failed', next_attempt_at = NULL, error = :error::text
    FROM (
        SELECT delivery.* FROM overdue
        CROSS JOIN LATERAL (
            SELECT ctid AS place, id AS place_id FROM webhook_deliveries
            WHERE account_id = overdue.account_id AND id = overdue.id LIMIT 1) delivery) given
    WHERE webhook_deliveries.ctid = given.place AND webhook_deliveries.id = given.place_id
)
DELETE FROM webhook_schedule USING overdue WHERE webhook_schedule.ctid = overdue.place RETURNING 1
""")


async def lease_due(tx: Connection, now: datetime, lease_until: datetime, limit: int) -> list[WebhookTicket]:
    """Tickets for due deliveries, the longest due first; none of them gets another ticket before `lease_until`."""
    return [WebhookTicket(*row) for row in await tx.fetch(_LEASE, now, lease_until, limit)]


async def end_overdue(tx: Connection, due_before: datetime, limit: int) -> int:
    """End deliveries that were due before then and are not claimed, and record that; return how many."""
    ids_before = lowest_id(due_before)
    rows = await tx.fetch(*_END_OVERDUE.bind(due_before=due_before, ids_before=ids_before, error=OVERDUE, limit=limit))
    return len(rows)


async def reclaim_expired_workers(tx: Connection, now: datetime, limit: int = RECLAIMED_BATCH_MAX) -> int:
    """Make due what dead workers had claimed; return how many. If it is `limit`, there may be more.

    `delivery_schedule` deletes the dead workers' rows: both schedules have the same workers.
    """
    return len(await tx.fetch(_RECLAIM, now, limit))


async def release_unknown(
    tx: Connection, worker_id: UUID, known: Iterable[tuple[AccountId, UUID]], now: datetime
) -> int:
    """Make due what the worker has claimed without knowing it: the answer to a claim's commit was lost."""
    account_ids, ids = columns(list(known), 2)
    return len(await tx.fetch(*_RELEASE_UNKNOWN.bind(worker_id=worker_id, now=now, account_ids=account_ids, ids=ids)))


async def postpone(tx: Connection, asked: Mapping[WebhookKey, datetime]) -> int:
    """Postpone deliveries that were not claimed: no attempt is counted, and their tickets become invalid.

    Returns how many were postponed; those that were claimed or postponed meanwhile stay as they are.
    """
    found = await _lock(tx, asked)
    if found:
        ids = [delivery_id for _, delivery_id, _ in found]
        await tx.execute(
            *_POSTPONE.bind(
                lowest=min(ids),
                highest=max(ids),
                places=[call.place for call in found.values()],
                account_ids=[account_id for account_id, _, _ in found],
                ids=ids,
                next_at=[asked[key] for key in found],
            )
        )
    return len(found)


async def claim(
    tx: Connection, worker_id: UUID, tickets: Iterable[WebhookTicket], now: datetime, until: datetime
) -> list[ClaimedWebhook]:
    """Claim these for the worker; tickets that came too late are absent.

    A claim lasts as long as the worker's lease, and not longer than `until`, which is after the end of the
    longest attempt: deliveries that the worker lost are due again then.
    """
    if until <= now:
        raise ValueError(f"a claim must end in the future: {until} is not after {now}")
    found = await _lock(tx, ((ticket.account_id, ticket.webhook_delivery_id, ticket.fence) for ticket in tickets))
    if not found:
        return []
    event_ids = [call.event_id for call in found.values()]
    rows = await tx.fetch(
        *_CLAIM.bind(
            now=now,
            worker_id=worker_id,
            until=until,
            disabled=DISABLED,
            deleted=DELETED,
            lowest=min(event_ids),
            highest=max(event_ids),
            places=[call.place for call in found.values()],
            account_ids=[account_id for account_id, _, _ in found],
            event_ids=event_ids,
            endpoint_ids=[call.endpoint_id for call in found.values()],
            are_over=[call.attempt_count >= call.max_attempts for call in found.values()],
        )
    )
    return [ClaimedWebhook(**row) for row in rows]


async def record(tx: Connection, results: Iterable[WebhookOutcome], now: datetime) -> RecordedWebhooks:
    """Record the results of claims; a second time changes nothing.

    A result counts while its fence is the schedule's. A late result changes nothing: the webhook delivery was
    claimed again, or cancelled.
    """
    batch: dict[WebhookKey, WebhookOutcome] = {}
    for result in results:
        batch.setdefault(result.key, result)
    batch = dict(sorted(batch.items(), key=itemgetter(0)))
    found = await _lock(tx, batch)
    if found:
        await _write(tx, batch, found, now)
    return RecordedWebhooks(
        tuple([result for key, result in batch.items() if key in found]),
        tuple([result for key, result in batch.items() if key not in found]),
    )


async def _write(
    tx: Connection, batch: Mapping[WebhookKey, WebhookOutcome], found: Mapping[WebhookKey, "_Call"], now: datetime
) -> None:
    outcomes = [batch[key] for key in found]
    bodies = [outcome.response_body for outcome in outcomes]
    ids = [outcome.id for outcome in outcomes]
    final = [call.place for key, call in found.items() if batch[key].result.is_final]
    later = [(call, batch[key]) for key, call in found.items() if not batch[key].result.is_final]
    row = await tx.fetchrow(
        *_RECORD.bind(
            now=now,
            lowest=min(ids),
            highest=max(ids),
            account_ids=[outcome.account_id for outcome in outcomes],
            ids=ids,
            statuses=[outcome.result if outcome.result.is_final else "pending" for outcome in outcomes],
            attempts=[call.attempt_count - _uncounted(batch[key], call) for key, call in found.items()],
            log_next_at=[outcome.next_at for outcome in outcomes],
            urls=[outcome.url for outcome in outcomes],
            http_statuses=[outcome.http_status for outcome in outcomes],
            errors=[storable(outcome.error, ERROR_CHARACTERS_MAX) for outcome in outcomes],
            durations_ms=[outcome.duration_ms for outcome in outcomes],
            response_bodies=[None if body is None else body[:RESPONSE_BYTES_MAX] for body in bodies],
            responses_truncated=[
                outcome.response_truncated or len(outcome.response_body or b"") > RESPONSE_BYTES_MAX
                for outcome in outcomes
            ],
            failed_attempts=[_failed_attempt(outcome, now) for outcome in outcomes],
            struck_places=final,
            later_places=[call.place for call, _ in later],
            later_next_at=[outcome.next_at for _, outcome in later],
            uncounted=[_uncounted(outcome, call) for call, outcome in later],
        )
    )
    written = tuple(required(row))
    if written != (len(final), len(later)):
        raise RuntimeError(f"a locked row was not found at its place: {written}")


def _failed_attempt(outcome: WebhookOutcome, now: datetime) -> str | None:
    """The short form of a failed attempt; for a success, the delivery's own columns say everything."""
    if outcome.url is None or outcome.result is WebhookResult.SUCCEEDED:
        return None
    body = outcome.response_body
    return json.dumps(
        {
            "at": now.isoformat(),
            "http_status": outcome.http_status,
            "duration_ms": outcome.duration_ms,
            "error": storable(outcome.error, ERROR_CHARACTERS_MAX),
            "body": None if body is None else b64encode(body[:ATTEMPT_BODY_BYTES_MAX]).decode(),
            "truncated": outcome.response_truncated or len(body or b"") > ATTEMPT_BODY_BYTES_MAX,
        }
    )


class _Call(NamedTuple):
    """A locked row."""

    place: RowLocation
    event_id: UUID
    attempt_count: int
    max_attempts: int
    endpoint_id: UUID


async def _lock(tx: Connection, keys: Iterable[WebhookKey]) -> dict[WebhookKey, _Call]:
    """Lock the rows whose fence is unchanged; other rows are absent."""
    ordered = sorted(set(keys))
    if not ordered:
        return {}
    rows = await tx.fetch(_LOCK, *columns(ordered))
    return {ordered[number - 1]: _Call(*call) for number, *call in rows}


def _uncounted(result: WebhookOutcome, call: _Call) -> int:
    """Whether the claim counted an attempt although there was none."""
    return int(result.result is WebhookResult.POSTPONED and call.attempt_count > 0)
