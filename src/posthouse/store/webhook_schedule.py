"""The schedule of webhook deliveries: which events are to be sent, by which worker, and the results.

It works as `delivery_schedule` does: a lease and a claim move `next_at` forward, the fence goes up whenever what a
ticket says was used or has become untrue, attempts are counted at the claim, rows are locked in the order of their
keys and changed by their places. Only the log differs: a webhook delivery is one row, which holds the last attempt
that counted, and in brief every attempt that failed.

The endpoint is read at the claim, so that a new URL or secret applies to all that is pending. Recording holds the
lock of the row in `calls`, and nothing else writes to the log of a pending webhook delivery.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from operator import itemgetter
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId, lowest_id
from posthouse.rules.ticket import WebhookTicket
from posthouse.store.delivery_schedule import Place, columns
from posthouse.store.postgres import Connection, required, storable
from posthouse.store.statement import statement

RECLAIMED_AT_ONCE_MAX: Final = 1_000
# How much is kept of a response, and of our own error text.
RESPONSE_BYTES_MAX: Final = 2_048
ERROR_CHARACTERS_MAX: Final = 500
# Of each failed attempt: seven of them stay below 10 KB.
ATTEMPT_BODY_BYTES_MAX: Final = 512
DISABLED: Final = "It was cancelled: the webhook endpoint is disabled."
DELETED: Final = "It was cancelled: the webhook endpoint was deleted."
OVERDUE: Final = "It was given up: its attempt was due 3 days ago and could not be made."

# Account, webhook delivery, fence.
WebhookKey = tuple[AccountId, UUID, int]


class NewWebhookDelivery(NamedTuple):
    """An event to be sent if its account's endpoint is subscribed to its type; `id` is the webhook delivery's."""

    account_id: AccountId
    id: UUID
    event_id: UUID
    message_id: MessageId
    position: int
    type: str
    trace: bytes | None = None


@dataclass(frozen=True, slots=True)
class ClaimedWebhook:
    """One webhook delivery to be tried, under a fence of its own.

    `attempt_count` includes this attempt, and any whose worker died before it reported. A delivery that is over, or
    cancelled (`cancelled` says why), is not to be tried: nothing is counted for it, only its end is to be recorded.
    Any other has its URL, sealed secret and body; only a body can be missing, if its event was lost. `answered_at`,
    `failing_since` and `failing_noted_at` are the endpoint's. `trace` is the trace that it belongs to, if it is traced.
    Without `endpoint_id` it is for the account's webhook, which has neither a second secret nor headers.
    """

    account_id: AccountId
    id: UUID
    event_id: UUID
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
    endpoint_id: UUID | None = None
    previous_secret_sealed: bytes | None = field(default=None, repr=False)
    headers_sealed: bytes | None = field(default=None, repr=False)

    @property
    def key(self) -> WebhookKey:
        return self.account_id, self.id, self.fence

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled is not None

    @property
    def is_ping(self) -> bool:
        """A test that the customer asked for: the only delivery with a single attempt."""
        return self.max_attempts == 1


class WebhookResult(StrEnum):
    """The result of a claim. `DEFERRED` is tried again; `POSTPONED` was no attempt and doesn't count."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEFERRED = "deferred"
    POSTPONED = "postponed"

    @property
    def is_final(self) -> bool:
        return self in (WebhookResult.SUCCEEDED, WebhookResult.FAILED)


@dataclass(frozen=True, slots=True)
class WebhookOutcome:
    """The result of one claim; if it isn't final, with the time of the next attempt.

    `url` is where the attempt went; without it nothing was tried, and the log keeps the attempt before it. `error` is
    our own text; `response_body` is the receiver's, cut to RESPONSE_BYTES_MAX. `is_news`: the endpoint began to answer
    or to fail with this attempt. Without `endpoint_id` it was the account's webhook.
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
    is_news: bool = False
    endpoint_id: UUID | None = None

    def __post_init__(self) -> None:
        if (self.next_at is None) is not self.result.is_final:
            raise ValueError(f"what is final has no next time, anything else has one: {self.result}")
        if (self.url is None) is not (
            self.result is WebhookResult.POSTPONED
        ) and self.result is not WebhookResult.FAILED:
            raise ValueError(f"an attempt has its URL, and nothing else has one: {self.result}")
        if self.result is WebhookResult.SUCCEEDED and not 200 <= (self.http_status or 0) <= 299:
            raise ValueError(f"success is a 2xx: {self.http_status}")

    @property
    def key(self) -> WebhookKey:
        return self.account_id, self.id, self.fence


class RecordedWebhooks(NamedTuple):
    """`counted` changed their webhook deliveries; `late` came after another claim or record, and did not."""

    counted: tuple[WebhookOutcome, ...]
    late: tuple[WebhookOutcome, ...]


class WebhookPostponement(NamedTuple):
    """A ticket's delivery can't be tried before `next_at`, for a reason that isn't the receiver's."""

    account_id: AccountId
    id: UUID
    fence: int
    next_at: datetime


# Whether an endpoint exists and is subscribed is checked here, even if the caller has checked some accounts.
_ENTER: Final = statement("""
WITH wanted AS MATERIALIZED (
    SELECT event.*, endpoint.url
    FROM unnest(:account_ids::uuid[], :ids::uuid[], :event_ids::uuid[], :message_ids::uuid[],
        :positions::smallint[], :types::text[], :traces::bytea[])
        event(account_id, id, event_id, message_id, position, type, trace)
    CROSS JOIN LATERAL (
        SELECT url FROM webhook_endpoints
        WHERE account_id = event.account_id AND enabled AND event.type = ANY(events) LIMIT 1) endpoint
), logged AS (
    INSERT INTO webhook_deliveries (account_id, id, event_id, type, message_id, position, url, max_attempts,
        created_at, next_attempt_at)
    SELECT account_id, id, event_id, type, message_id, position, url, :max_attempts, :now, :now FROM wanted
)
INSERT INTO calls (account_id, id, event_id, next_at, due_at, max_attempts, trace)
SELECT account_id, id, event_id, :next_at, :now, :max_attempts, trace FROM wanted
RETURNING account_id, id, fence
""")

_LEASE: Final = """
UPDATE calls SET next_at = $2, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM calls WHERE next_at <= $1 ORDER BY next_at LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING account_id, id, fence, endpoint_id
"""

_RECLAIM: Final = """
UPDATE calls SET next_at = $1, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM calls
    WHERE worker_id IS NOT NULL AND worker_id <> ALL(ARRAY(SELECT id FROM workers WHERE expires_at > $1))
    LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
"""

_RELEASE_UNKNOWN: Final = statement("""
UPDATE calls SET next_at = :now, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM calls
    WHERE worker_id = :worker_id AND (account_id, id) NOT IN (SELECT * FROM unnest(:account_ids::uuid[], :ids::uuid[]))
    FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
""")

_LOCK: Final = """
SELECT asked.number, due.*
FROM unnest($1::uuid[], $2::uuid[], $3::integer[]) WITH ORDINALITY asked(account_id, id, fence, number)
CROSS JOIN LATERAL (
    SELECT ctid AS place, event_id, attempt_count, max_attempts, endpoint_id FROM calls
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
UPDATE calls SET next_at = asked.next_at, fence = fence + 1, worker_id = NULL
FROM asked WHERE calls.ctid = asked.place
""")

_CLAIM: Final = statement("""
WITH asked AS MATERIALIZED (
    SELECT due.place, due.is_over, endpoint.*, event.body
    FROM unnest(:places::tid[], :account_ids::uuid[], :event_ids::uuid[], :are_over::boolean[]) due(place,
        account_id, event_id, is_over)
    LEFT JOIN LATERAL (
        SELECT enabled, url, secret_sealed, answered_at, failing_since, failing_noted_at FROM webhook_endpoints
        WHERE account_id = due.account_id LIMIT 1) endpoint ON true
    LEFT JOIN LATERAL (
        SELECT body FROM events
        WHERE account_id = due.account_id AND id = due.event_id AND id >= :lowest AND id <= :highest
          AND endpoint.enabled AND NOT due.is_over LIMIT 1) event ON true
)
UPDATE calls SET fence = fence + 1, worker_id = :worker_id, next_at = :until,
    attempt_count = attempt_count + CASE WHEN asked.enabled AND NOT asked.is_over THEN 1 ELSE 0 END
FROM asked WHERE calls.ctid = asked.place
RETURNING account_id, id, event_id, fence, attempt_count, max_attempts, is_over,
    CASE WHEN enabled IS NULL THEN :deleted::text WHEN NOT enabled THEN :disabled::text END AS cancelled,
    CASE WHEN enabled AND NOT is_over THEN url END AS url, answered_at, failing_since, failing_noted_at,
    CASE WHEN enabled AND NOT is_over THEN secret_sealed END AS secret_sealed, body, trace
""")

_CLAIM_FOR_ENDPOINTS: Final = statement("""
WITH asked AS MATERIALIZED (
    SELECT due.place, due.is_over, endpoint.*, event.body
    FROM unnest(:places::tid[], :account_ids::uuid[], :event_ids::uuid[], :endpoint_ids::uuid[], :are_over::boolean[])
        due(place, account_id, event_id, endpoint_id, is_over)
    LEFT JOIN LATERAL (
        SELECT enabled, url, secret_sealed, CASE WHEN previous_until > :now THEN previous_secret_sealed END
            AS previous_secret_sealed, headers_sealed, answered_at, failing_since, failing_noted_at
        FROM endpoints WHERE account_id = due.account_id AND id = due.endpoint_id LIMIT 1) endpoint ON true
    LEFT JOIN LATERAL (
        SELECT body FROM endpoint_events
        WHERE account_id = due.account_id AND id = due.event_id AND id >= :lowest AND id <= :highest
          AND endpoint.enabled AND NOT due.is_over LIMIT 1) event ON true
)
UPDATE calls SET fence = fence + 1, worker_id = :worker_id, next_at = :until,
    attempt_count = attempt_count + CASE WHEN asked.enabled AND NOT asked.is_over THEN 1 ELSE 0 END
FROM asked WHERE calls.ctid = asked.place
RETURNING account_id, id, event_id, fence, attempt_count, max_attempts, is_over,
    CASE WHEN enabled IS NULL THEN :deleted::text WHEN NOT enabled THEN :disabled::text END AS cancelled,
    CASE WHEN enabled AND NOT is_over THEN url END AS url, answered_at, failing_since, failing_noted_at,
    CASE WHEN enabled AND NOT is_over THEN secret_sealed END AS secret_sealed, body, trace, endpoint_id,
    previous_secret_sealed, headers_sealed
""")

# A log row that was deleted meanwhile stays deleted. What was only postponed keeps the attempt before it, and the time
# at which it was due.
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
    DELETE FROM calls WHERE ctid = ANY(:struck_places::tid[])
    RETURNING 1
), postponed AS (
    UPDATE calls SET next_at = later.next_at, fence = fence + 1, worker_id = NULL,
        attempt_count = attempt_count - later.uncounted,
        due_at = CASE WHEN later.uncounted = 0 THEN later.next_at ELSE due_at END
    FROM unnest(:later_places::tid[], :later_next_at::timestamptz[], :uncounted::smallint[]) later(place, next_at,
        uncounted)
    WHERE calls.ctid = later.place
    RETURNING 1
)
SELECT (SELECT count(*) FROM struck), (SELECT count(*) FROM postponed)
""")


# The ids narrow it to rows that are old enough.
_END_OVERDUE: Final = statement("""
WITH overdue AS MATERIALIZED (
    SELECT account_id, id, ctid AS place FROM calls
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
DELETE FROM calls USING overdue WHERE calls.ctid = overdue.place RETURNING 1
""")


async def enter(
    tx: Connection, deliveries: Sequence[NewWebhookDelivery], now: datetime, next_at: datetime, max_attempts: int
) -> list[WebhookTicket]:
    """Enter these webhook deliveries where the account's endpoint is enabled and subscribed; return their tickets.

    There are no other tickets for them before `next_at`.
    """
    if not deliveries:
        return []
    rows = await tx.fetch(
        *_ENTER.bind(
            now=now,
            next_at=next_at,
            max_attempts=max_attempts,
            account_ids=[delivery.account_id for delivery in deliveries],
            ids=[delivery.id for delivery in deliveries],
            event_ids=[delivery.event_id for delivery in deliveries],
            message_ids=[delivery.message_id for delivery in deliveries],
            positions=[delivery.position for delivery in deliveries],
            types=[delivery.type for delivery in deliveries],
            traces=[delivery.trace for delivery in deliveries],
        )
    )
    return [WebhookTicket(*row) for row in rows]


async def lease_due(tx: Connection, now: datetime, lease_until: datetime, limit: int) -> list[WebhookTicket]:
    """Tickets for what is due, the longest due first; there are no others for it before `lease_until`."""
    return [WebhookTicket(*row) for row in await tx.fetch(_LEASE, now, lease_until, limit)]


async def end_overdue(tx: Connection, due_before: datetime, limit: int) -> int:
    """End what was due before then and is claimed by no worker, on record; return how many."""
    ids_before = lowest_id(due_before)
    rows = await tx.fetch(*_END_OVERDUE.bind(due_before=due_before, ids_before=ids_before, error=OVERDUE, limit=limit))
    return len(rows)


async def reclaim_expired_workers(tx: Connection, now: datetime, limit: int = RECLAIMED_AT_ONCE_MAX) -> int:
    """Make due what dead workers had claimed; return how many. As many as `limit`: there may be more.

    `delivery_schedule` deletes the dead workers' rows: both schedules have the same workers.
    """
    return len(await tx.fetch(_RECLAIM, now, limit))


async def release_unknown(
    tx: Connection, worker_id: UUID, known: Iterable[tuple[AccountId, UUID]], now: datetime
) -> int:
    """Make due what the worker has claimed and doesn't know: the answer to a claim's commit was lost."""
    account_ids, ids = columns(list(known), 2)
    return len(await tx.fetch(*_RELEASE_UNKNOWN.bind(worker_id=worker_id, now=now, account_ids=account_ids, ids=ids)))


async def postpone(tx: Connection, postponements: Iterable[WebhookPostponement]) -> int:
    """Postpone what was not claimed: no attempt is counted, and its tickets are void from now on.

    Returns how many were postponed; what was claimed or postponed meanwhile stays as it is.
    """
    asked = {postponement[:3]: postponement.next_at for postponement in postponements}
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
    """Claim these for the worker; tickets that came late are absent.

    A claim lasts as long as the worker's lease, and not longer than `until`, which is after the end of the
    longest attempt: what the worker lost is due again then.
    """
    if until <= now:
        raise ValueError(f"a claim lasts beyond now: {until} is not after {now}")
    found = await _lock(tx, ((ticket.account_id, ticket.webhook_delivery_id, ticket.fence) for ticket in tickets))
    if not found:
        return []
    claimed: list[ClaimedWebhook] = []
    if webhooks := {key: call for key, call in found.items() if call.endpoint_id is None}:
        common = _claim_arguments(webhooks, worker_id, until)
        claimed += [ClaimedWebhook(**row) for row in await tx.fetch(*_CLAIM.bind(**common))]
    if others := {key: call for key, call in found.items() if call.endpoint_id is not None}:
        common = _claim_arguments(others, worker_id, until)
        endpoint_ids = [call.endpoint_id for call in others.values()]
        rows = await tx.fetch(*_CLAIM_FOR_ENDPOINTS.bind(**common, endpoint_ids=endpoint_ids, now=now))
        claimed += [ClaimedWebhook(**row) for row in rows]
    return claimed


def _claim_arguments(found: Mapping[WebhookKey, "_Call"], worker_id: UUID, until: datetime) -> dict[str, object]:
    event_ids = [call.event_id for call in found.values()]
    return {
        "worker_id": worker_id,
        "until": until,
        "disabled": DISABLED,
        "deleted": DELETED,
        "lowest": min(event_ids),
        "highest": max(event_ids),
        "places": [call.place for call in found.values()],
        "account_ids": [account_id for account_id, _, _ in found],
        "event_ids": event_ids,
        "are_over": [call.attempt_count >= call.max_attempts for call in found.values()],
    }


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
        raise RuntimeError(f"a row that was locked is not where it was: {written}")


def _failed_attempt(outcome: WebhookOutcome, now: datetime) -> str | None:
    """What is kept of an attempt beside the last; of a success the delivery's own columns say it all."""
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

    place: Place
    event_id: UUID
    attempt_count: int
    max_attempts: int
    endpoint_id: UUID | None


async def _lock(tx: Connection, keys: Iterable[WebhookKey]) -> dict[WebhookKey, _Call]:
    """Lock the rows whose fence is still the same; other rows are absent."""
    ordered = sorted(set(keys))
    if not ordered:
        return {}
    rows = await tx.fetch(_LOCK, *columns(ordered))
    return {ordered[number - 1]: _Call(*call) for number, *call in rows}


def _uncounted(result: WebhookOutcome, call: _Call) -> int:
    """The claim counted an attempt, and there was none."""
    return int(result.result is WebhookResult.POSTPONED and call.attempt_count > 0)
