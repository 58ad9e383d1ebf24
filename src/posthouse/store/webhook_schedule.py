"""The calendar of webhooks: which events are to be sent, by whom, and what came of it.

It works as the calendar of mail does (`schedule` tells how): a lease and a claim push `next_at` forward, the fence
goes up whenever what a ticket says has been used or has become untrue, attempts are counted at the claim, rows are
locked in the order of their keys and changed by their places. Only the log is another: a webhook delivery is
one row, which the last attempt that counted has filled.

Where an event goes is read at the claim, so that a new URL or secret is good for all that is pending. Whoever
records holds the call's lock, and nobody else writes to the log of a pending webhook delivery.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from operator import itemgetter
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.ticket import WebhookTicket
from posthouse.store.delivery_schedule import Place, columns
from posthouse.store.postgres import Connection, required, storable

RECLAIMED_AT_ONCE_MAX: Final = 1_000
# What is kept of an answer, and of our own words for a failure.
RESPONSE_BYTES_MAX: Final = 2_048
ERROR_CHARACTERS_MAX: Final = 500
DISABLED: Final = "It was cancelled: the webhook endpoint is disabled."
DELETED: Final = "It was cancelled: the webhook endpoint was deleted."

# Account, webhook delivery, fence.
Key = tuple[AccountId, UUID, int]


class NewWebhookDelivery(NamedTuple):
    """An event to be sent, should its account want to hear of its type; `id` is the webhook delivery's."""

    account_id: AccountId
    id: UUID
    event_id: UUID
    message_id: MessageId
    position: int
    type: str


@dataclass(frozen=True, slots=True)
class ClaimedWebhook:
    """One webhook delivery to be tried, under a fence of its own.

    `attempt_count` includes this attempt, and any that no worker lived to report. One that is over, or cancelled
    (`cancelled` says why), is not to be tried: nothing is counted for it, and its end is all that is wanted. Any
    other has its URL, sealed secret and body; only a body can be missing, if its event was lost.
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
    secret_sealed: bytes | None = field(repr=False)
    body: bytes | None = field(repr=False)

    @property
    def key(self) -> Key:
        return self.account_id, self.id, self.fence

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled is not None


class WebhookResult(StrEnum):
    """What came of a claim. `DEFERRED` is tried again; `POSTPONED` was no attempt and doesn't count."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEFERRED = "deferred"
    POSTPONED = "postponed"

    @property
    def is_final(self) -> bool:
        return self in (WebhookResult.SUCCEEDED, WebhookResult.FAILED)


@dataclass(frozen=True, slots=True)
class WebhookOutcome:
    """What came of one claim; what isn't final has the time of the next attempt.

    `url` is where the attempt went; without one nothing was tried, and the log keeps what the attempt before it
    brought. `error` is our own text; `response_body` is the receiver's, and cut to what is kept.
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
    def key(self) -> Key:
        return self.account_id, self.id, self.fence


class RecordedWebhooks(NamedTuple):
    """`counted` changed their webhook deliveries; `late` came after someone else's claim or record, and did not."""

    counted: tuple[WebhookOutcome, ...]
    late: tuple[WebhookOutcome, ...]


class WebhookPostponement(NamedTuple):
    """What a ticket asks can't be done before `next_at`, for a reason that isn't the receiver's."""

    account_id: AccountId
    id: UUID
    fence: int
    next_at: datetime


# For whom an endpoint is there and listens is asked here, though the caller may know of some for whom not.
_ENTER: Final = """
WITH told AS MATERIALIZED (
    SELECT event.*, endpoint.url
    FROM unnest($4::uuid[], $5::uuid[], $6::uuid[], $7::uuid[], $8::smallint[], $9::text[])
        event(account_id, id, event_id, message_id, position, type)
    CROSS JOIN LATERAL (
        SELECT url FROM webhook_endpoints
        WHERE account_id = event.account_id AND enabled AND event.type = ANY(events) LIMIT 1) endpoint
), logged AS (
    INSERT INTO webhook_deliveries (account_id, id, event_id, type, message_id, position, url, max_attempts,
        created_at, next_attempt_at)
    SELECT account_id, id, event_id, type, message_id, position, url, $3, $1, $1 FROM told
)
INSERT INTO calls (account_id, id, event_id, next_at, max_attempts)
SELECT account_id, id, event_id, $2, $3 FROM told
RETURNING account_id, id, fence
"""

_LEASE: Final = """
UPDATE calls SET next_at = $2, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM calls WHERE next_at <= $1 ORDER BY next_at LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING account_id, id, fence
"""

_RECLAIM: Final = """
UPDATE calls SET next_at = $1, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM calls
    WHERE worker_id IS NOT NULL AND worker_id <> ALL(ARRAY(SELECT id FROM workers WHERE expires_at > $1))
    LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
"""

_LET_GO: Final = """
UPDATE calls SET next_at = $2, worker_id = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM calls
    WHERE worker_id = $1 AND (account_id, id) NOT IN (SELECT * FROM unnest($3::uuid[], $4::uuid[]))
    FOR NO KEY UPDATE SKIP LOCKED))
RETURNING 1
"""

_LOCK: Final = """
SELECT asked.number, due.*
FROM unnest($1::uuid[], $2::uuid[], $3::integer[]) WITH ORDINALITY asked(account_id, id, fence, number)
CROSS JOIN LATERAL (
    SELECT ctid AS place, event_id, attempt_count, max_attempts FROM calls
    WHERE account_id = asked.account_id AND id = asked.id AND fence = asked.fence
    LIMIT 1 FOR NO KEY UPDATE) due
"""

_POSTPONE: Final = """
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($3::tid[], $4::uuid[], $5::uuid[], $6::timestamptz[]) asked(place, account_id, id, next_at)
), logged AS (
    UPDATE webhook_deliveries SET next_attempt_at = told.next_at
    FROM (
        SELECT delivery.*, asked.next_at FROM asked
        CROSS JOIN LATERAL (
            SELECT ctid AS place, id AS place_id FROM webhook_deliveries
            WHERE account_id = asked.account_id AND id = asked.id AND id >= $1 AND id <= $2 LIMIT 1) delivery) told
    WHERE webhook_deliveries.ctid = told.place AND webhook_deliveries.id = told.place_id
)
UPDATE calls SET next_at = asked.next_at, fence = fence + 1, worker_id = NULL
FROM asked WHERE calls.ctid = asked.place
"""

_CLAIM: Final = """
WITH asked AS MATERIALIZED (
    SELECT due.place, due.is_over, endpoint.enabled, endpoint.url, endpoint.secret_sealed, event.body
    FROM unnest($6::tid[], $7::uuid[], $8::uuid[], $9::boolean[]) due(place, account_id, event_id, is_over)
    LEFT JOIN LATERAL (
        SELECT enabled, url, secret_sealed FROM webhook_endpoints
        WHERE account_id = due.account_id LIMIT 1) endpoint ON true
    LEFT JOIN LATERAL (
        SELECT body FROM events
        WHERE account_id = due.account_id AND id = due.event_id AND id >= $4 AND id <= $5
          AND endpoint.enabled AND NOT due.is_over LIMIT 1) event ON true
)
UPDATE calls SET fence = fence + 1, worker_id = $1, next_at = $2,
    attempt_count = attempt_count + CASE WHEN asked.enabled AND NOT asked.is_over THEN 1 ELSE 0 END
FROM asked WHERE calls.ctid = asked.place
RETURNING account_id, id, event_id, fence, attempt_count, max_attempts, is_over,
    CASE WHEN enabled IS NULL THEN $10::text WHEN NOT enabled THEN $3::text END AS cancelled,
    CASE WHEN enabled AND NOT is_over THEN url END AS url,
    CASE WHEN enabled AND NOT is_over THEN secret_sealed END AS secret_sealed, body
"""

# The log of what was deleted meanwhile stays so. What was only put off keeps what the attempt before it left.
_RECORD: Final = """
WITH logged AS (
    UPDATE webhook_deliveries SET status = told.status, attempt = told.attempt, next_attempt_at = told.next_at,
        error = CASE WHEN told.url IS NULL AND told.next_at IS NOT NULL THEN webhook_deliveries.error
                     ELSE told.error END,
        url = coalesce(told.url, webhook_deliveries.url),
        last_attempt_at = CASE WHEN told.url IS NULL THEN last_attempt_at ELSE $1::timestamptz END,
        http_status = CASE WHEN told.url IS NULL THEN webhook_deliveries.http_status ELSE told.http_status END,
        duration_ms = CASE WHEN told.url IS NULL THEN webhook_deliveries.duration_ms ELSE told.duration_ms END,
        response_body = CASE WHEN told.url IS NULL THEN webhook_deliveries.response_body ELSE told.response_body END,
        response_truncated = CASE WHEN told.url IS NULL THEN webhook_deliveries.response_truncated
                                  ELSE told.response_truncated END
    FROM (
        SELECT place, place_id, asked.*
        FROM unnest($4::uuid[], $5::uuid[], $6::text[], $7::smallint[], $8::timestamptz[], $9::text[],
            $10::smallint[], $11::text[], $12::integer[], $13::bytea[], $14::boolean[])
            asked(account_id, id, status, attempt, next_at, url, http_status, error, duration_ms, response_body,
                response_truncated)
        CROSS JOIN LATERAL (
            SELECT ctid AS place, id AS place_id FROM webhook_deliveries
            WHERE account_id = asked.account_id AND id = asked.id AND id >= $2 AND id <= $3 LIMIT 1) delivery) told
    WHERE webhook_deliveries.ctid = told.place AND webhook_deliveries.id = told.place_id
), struck AS (
    DELETE FROM calls WHERE ctid = ANY($15::tid[])
    RETURNING 1
), put_off AS (
    UPDATE calls SET next_at = later.next_at, fence = fence + 1, worker_id = NULL,
        attempt_count = attempt_count - later.uncounted
    FROM unnest($16::tid[], $17::timestamptz[], $18::smallint[]) later(place, next_at, uncounted)
    WHERE calls.ctid = later.place
    RETURNING 1
)
SELECT (SELECT count(*) FROM struck), (SELECT count(*) FROM put_off)
"""


async def enter(
    tx: Connection, notifications: Sequence[NewWebhookDelivery], now: datetime, next_at: datetime, max_attempts: int
) -> list[WebhookTicket]:
    """Make these webhook deliveries, where an account's endpoint is there, enabled and subscribed; their tickets.

    Nobody else gets a ticket for one before `next_at`.
    """
    if not notifications:
        return []
    rows = await tx.fetch(_ENTER, now, next_at, max_attempts, *columns(notifications))
    return [WebhookTicket(*row) for row in rows]


async def lease_due(tx: Connection, now: datetime, lease_until: datetime, limit: int) -> list[WebhookTicket]:
    """Tickets for what is due, the longest due first; nobody else gets one before `lease_until`."""
    return [WebhookTicket(*row) for row in await tx.fetch(_LEASE, now, lease_until, limit)]


async def reclaim_expired_workers(tx: Connection, now: datetime, limit: int = RECLAIMED_AT_ONCE_MAX) -> int:
    """What dead workers had claimed is due now; how many. As many as `limit` means that there may be more.

    Who is dead, and that the dead are forgotten, is the mail calendar's to say: they are workers like any.
    """
    return len(await tx.fetch(_RECLAIM, now, limit))


async def let_go(tx: Connection, worker_id: UUID, known: Iterable[tuple[AccountId, UUID]], now: datetime) -> int:
    """What is the worker's and the worker doesn't know of is due now: a claim whose commit nobody heard of."""
    return len(await tx.fetch(_LET_GO, worker_id, now, *columns(list(known), 2)))


async def postpone(tx: Connection, postponements: Iterable[WebhookPostponement]) -> int:
    """Put off what was not claimed: no attempt is counted, and its tickets are worth nothing from now on.

    How many were postponed; those that someone claimed or postponed meanwhile are left alone.
    """
    asked = {postponement[:3]: postponement.next_at for postponement in postponements}
    told = [(call.place, *key[:2], asked[key]) for key, call in (await _lock(tx, asked)).items()]
    if told:
        ids = [one[2] for one in told]
        await tx.execute(_POSTPONE, min(ids), max(ids), *columns(told))
    return len(told)


async def claim(
    tx: Connection, worker_id: UUID, tickets: Iterable[WebhookTicket], now: datetime, until: datetime
) -> list[ClaimedWebhook]:
    """What of these the worker now has to itself; tickets that came late are absent.

    It is the worker's for as long as the worker's lease lasts, and not longer than `until`, which is after
    the end of the longest attempt: whatever the worker forgot is due again then.
    """
    if until <= now:
        raise ValueError(f"a claim lasts beyond now: {until} is not after {now}")
    found = await _lock(tx, ((ticket.account_id, ticket.webhook_delivery_id, ticket.fence) for ticket in tickets))
    if not found:
        return []
    due = [(call.place, key[0], call.event_id, call.attempt_count >= call.max_attempts) for key, call in found.items()]
    event_ids = [call.event_id for call in found.values()]
    rows = await tx.fetch(_CLAIM, worker_id, until, DISABLED, min(event_ids), max(event_ids), *columns(due), DELETED)
    return [ClaimedWebhook(**row) for row in rows]


async def record(tx: Connection, results: Iterable[WebhookOutcome], now: datetime) -> RecordedWebhooks:
    """Write down what came of claims; a second time changes nothing.

    A result counts while its fence is the calendar's. One that comes late changes nothing: the webhook
    delivery belongs to whoever claimed it since, or to nobody if it was cancelled.
    """
    batch: dict[Key, WebhookOutcome] = {}
    for result in results:
        batch.setdefault(result.key, result)
    batch = dict(sorted(batch.items(), key=itemgetter(0)))
    found = await _lock(tx, batch)
    if found:
        logged = [_logged(batch[key], call) for key, call in found.items()]
        struck = [call.place for key, call in found.items() if batch[key].result.is_final]
        later = [
            (call.place, batch[key].next_at, _uncounted(batch[key], call))
            for key, call in found.items()
            if not batch[key].result.is_final
        ]
        ids = [key[1] for key in found]
        written = required(
            await tx.fetchrow(_RECORD, now, min(ids), max(ids), *columns(logged, 11), struck, *columns(later, 3))
        )
        if tuple(written) != (len(struck), len(later)):
            raise RuntimeError(f"a row that was locked is not where it was: {tuple(written)}")
    return RecordedWebhooks(
        tuple([result for key, result in batch.items() if key in found]),
        tuple([result for key, result in batch.items() if key not in found]),
    )


class _Call(NamedTuple):
    """A locked row."""

    place: Place
    event_id: UUID
    attempt_count: int
    max_attempts: int


async def _lock(tx: Connection, keys: Iterable[Key]) -> dict[Key, _Call]:
    """Lock the rows whose fence is still the one given; those of others are absent."""
    ordered = sorted(set(keys))
    if not ordered:
        return {}
    rows = await tx.fetch(_LOCK, *columns(ordered))
    return {ordered[number - 1]: _Call(*call) for number, *call in rows}


def _uncounted(result: WebhookOutcome, call: _Call) -> int:
    """The claim counted an attempt, and there was none."""
    return int(result.result is WebhookResult.POSTPONED and call.attempt_count > 0)


def _logged(result: WebhookOutcome, call: _Call) -> tuple[object, ...]:
    body = result.response_body
    return (
        result.account_id,
        result.id,
        result.result if result.result.is_final else "pending",
        call.attempt_count - _uncounted(result, call),
        result.next_at,
        result.url,
        result.http_status,
        storable(result.error, ERROR_CHARACTERS_MAX),
        result.duration_ms,
        None if body is None else body[:RESPONSE_BYTES_MAX],
        result.response_truncated or len(body or b"") > RESPONSE_BYTES_MAX,
    )
