"""Webhook endpoints, one an account, and the log of what was sent to them.

The schedule of what is to be sent is the table `calls`; URL and secret are read when it is sent. Where `calls` and
the log are changed together, `calls` is locked first, in the order of its keys, and the account's row last.

An account may have more in its log, and pending, than one transaction should hold. Disabling is to `save`, then
to `cancel_pending` until nothing is left. Deleting is to `disable`, to `forget` until nothing is left, then to
`delete`: after an interruption, a second try finds an endpoint that exists and is disabled, and what is claimed
meanwhile is cancelled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId
from posthouse.store.accounts import touch
from posthouse.store.delivery_schedule import columns
from posthouse.store.postgres import Connection, Row, required
from posthouse.store.statement import statement
from posthouse.store.webhook_schedule import DISABLED, WebhookOutcome, WebhookResult

PING_COOLDOWN: Final = timedelta(seconds=15)
# How much of a body the log shows; all of it is kept with its event.
BODY_SHOWN_BYTES_MAX: Final = 2_048
CHANGED_AT_ONCE_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class EndpointRow:
    account_id: AccountId
    url: str
    events: tuple[str, ...]
    enabled: bool
    created_at: datetime
    updated_at: datetime
    pinged_at: datetime | None
    # The URL's first 2xx, and the first failed call after its last 2xx; a new URL has neither.
    answered_at: datetime | None
    failing_since: datetime | None
    secret_sealed: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """A delivery of an event, as its last attempt left it; `next_attempt_at` is None once it is final.

    `url` is where the last attempt went, or the first will go. `request_body` is the beginning of what is sent, None
    when the event is no longer stored, and the delivery can't be replayed.
    """

    account_id: AccountId
    id: UUID
    event_id: UUID
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


_ENDPOINT: Final = """
account_id, url, events, enabled, created_at, updated_at, pinged_at, answered_at, failing_since, secret_sealed
"""

DELIVERY_COLUMNS: Final = """
account_id, id, event_id, type, message_id, position, url, status, attempt, max_attempts, http_status, error,
duration_ms, response_body, response_truncated, replay_of, created_at, last_attempt_at, next_attempt_at
"""

# No two sealed secrets are alike: a caller that gets its own back has created the row.
_SAVE: Final = statement(f"""
INSERT INTO webhook_endpoints (account_id, url, events, enabled, secret_sealed, created_at, updated_at)
VALUES (:account_id, :url, :events, :enabled, :secret_sealed, :now, :now)
ON CONFLICT (account_id) DO UPDATE SET url = excluded.url, events = excluded.events, enabled = excluded.enabled,
    updated_at = greatest(webhook_endpoints.updated_at, excluded.updated_at),
    answered_at = CASE WHEN webhook_endpoints.url = excluded.url THEN webhook_endpoints.answered_at END,
    failing_since = CASE WHEN webhook_endpoints.url = excluded.url THEN webhook_endpoints.failing_since END,
    failing_noted_at = CASE WHEN webhook_endpoints.url = excluded.url THEN webhook_endpoints.failing_noted_at END
RETURNING {_ENDPOINT}
""")
_FIND: Final = f"SELECT {_ENDPOINT} FROM webhook_endpoints WHERE account_id = $1"
_DISABLE: Final = """
UPDATE webhook_endpoints SET enabled = false, updated_at = greatest(updated_at, $2) WHERE account_id = $1 RETURNING 1
"""
_DELETE: Final = "DELETE FROM webhook_endpoints WHERE account_id = $1 RETURNING 1"
_ROTATE: Final = """
UPDATE webhook_endpoints SET secret_sealed = $2, updated_at = greatest(updated_at, $3) WHERE account_id = $1 RETURNING 1
"""
# Of two at once the second waits for the first, and then sees what it wrote.
_PING: Final = """
UPDATE webhook_endpoints SET pinged_at = $2
WHERE account_id = $1 AND enabled AND (pinged_at IS NULL OR pinged_at <= $3)
RETURNING 1
"""
# Of the URL that was called: a new one has not answered.
_ANSWERED: Final = """
UPDATE webhook_endpoints SET answered_at = coalesce(answered_at, $3), failing_since = NULL, failing_noted_at = NULL
WHERE account_id = $1 AND url = $2
"""
_FAILED: Final = """
UPDATE webhook_endpoints SET failing_since = $3 WHERE account_id = $1 AND url = $2 AND failing_since IS NULL
"""
# Once in a period of failure: a 2xx ends it.
_MARK_FAILING: Final = """
UPDATE webhook_endpoints SET failing_noted_at = $4
WHERE account_id = $1 AND url = $2 AND enabled AND failing_since <= $3 AND failing_noted_at IS NULL
RETURNING failing_since
"""

# The key's id is readable in the sealed value: a version byte, a length, the id.
_SEALED_WITH: Final = f"""
SELECT {_ENDPOINT} FROM webhook_endpoints
WHERE convert_from(substring(secret_sealed FROM 3 FOR get_byte(secret_sealed, 1)), 'UTF8') = ANY($1::text[])
LIMIT $2
"""
_RESEAL: Final = "UPDATE webhook_endpoints SET secret_sealed = $2 WHERE account_id = $1 AND secret_sealed = $3"

# Nothing of an account that has an endpoint to send to; and not what is being sent at this moment.
_LOCK_PENDING: Final = """
SELECT id, ctid AS place, attempt_count FROM calls
WHERE account_id = $1 AND endpoint_id IS NULL AND worker_id IS NULL
  AND NOT EXISTS (SELECT FROM webhook_endpoints WHERE account_id = $1 AND enabled)
ORDER BY id LIMIT $2 FOR NO KEY UPDATE
"""
_CANCEL: Final = statement("""
WITH struck AS (
    DELETE FROM calls WHERE ctid = ANY(:places::tid[])
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
WHERE account_id = $1 AND endpoint_id IS NULL
  AND NOT EXISTS (SELECT FROM webhook_endpoints WHERE account_id = $1 AND enabled)
ORDER BY id LIMIT $2
"""
_LOCK_RANGE: Final = """
SELECT ctid AS place FROM calls WHERE account_id = $1 AND endpoint_id IS NULL AND id >= $2 AND id <= $3
ORDER BY id FOR NO KEY UPDATE
"""
_STRIKE: Final = "DELETE FROM calls WHERE ctid = ANY($1::tid[])"
_FORGET: Final = """
DELETE FROM webhook_deliveries WHERE account_id = $1 AND endpoint_id IS NULL AND id >= $2 AND id <= $3
"""

_DELIVERY_BY_ID: Final = f"""
SELECT {DELIVERY_COLUMNS} FROM webhook_deliveries
WHERE account_id = $1 AND id = $2 AND endpoint_id IS NOT DISTINCT FROM $3
"""
_BODIES_IN: Final = """
SELECT asked.id, event.*
FROM unnest(:event_ids::uuid[]) asked(id)
CROSS JOIN LATERAL (
    SELECT substring(body FROM 1 FOR :shown_bytes_max) AS body, octet_length(body) > :shown_bytes_max AS is_cut
    FROM {table}
    WHERE account_id = :account_id AND id = asked.id AND id >= :lowest AND id <= :highest LIMIT 1) event
"""
_BODIES: Final = statement(_BODIES_IN.format(table="events"))
_ENDPOINT_BODIES: Final = statement(_BODIES_IN.format(table="endpoint_events"))

_TEST_EVENT: Final = statement("""
INSERT INTO events (account_id, id, type, created_at, body) VALUES (:account_id, :event_id, 'webhook.test', :now, :body)
""")
_ENTER: Final = statement("""
WITH endpoint AS MATERIALIZED (
    SELECT url FROM webhook_endpoints WHERE account_id = :account_id AND enabled
), due AS (
    INSERT INTO calls (account_id, id, event_id, next_at, due_at, max_attempts, trace)
    SELECT :account_id, :id, :event_id, :next_at, :now, :max_attempts,
        (SELECT trace FROM messages WHERE account_id = :account_id AND id = :message_id)
    FROM endpoint
)
INSERT INTO webhook_deliveries (account_id, id, event_id, type, message_id, position, url, max_attempts, replay_of,
    created_at, next_attempt_at)
SELECT :account_id, :id, :event_id, :type, :message_id, :position, url, :max_attempts, :replay_of, :now, :now
FROM endpoint
RETURNING 1
""")


def secret_purpose(account_id: AccountId) -> bytes:
    """What an endpoint's secret is sealed for; it opens nowhere else."""
    return b"webhook:" + account_id.bytes


async def save(
    tx: Connection,
    account_id: AccountId,
    url: str,
    events: Sequence[str],
    enabled: bool,
    secret_sealed: bytes,
    now: datetime,
) -> tuple[EndpointRow, bool]:
    """The endpoint as it is then, and whether it is new. An existing endpoint keeps its secret.

    Whatever is pending goes to the new URL; if the endpoint is disabled now, it is to be cancelled.
    """
    row = required(
        await tx.fetchrow(
            *_SAVE.bind(
                account_id=account_id,
                url=url,
                events=list(events),
                enabled=enabled,
                secret_sealed=secret_sealed,
                now=now,
            )
        )
    )
    await touch(tx, account_id, now)
    return _endpoint(row), row["secret_sealed"] == secret_sealed


async def find(connection: Connection, account_id: AccountId) -> EndpointRow | None:
    row = await connection.fetchrow(_FIND, account_id)
    return None if row is None else _endpoint(row)


async def rotate_secret(tx: Connection, account_id: AccountId, secret_sealed: bytes, now: datetime) -> bool:
    """The old secret ends at once, for all that is pending as well. False when there is no endpoint."""
    return await _changed(tx, _ROTATE, account_id, secret_sealed, now, now=now)


async def mark_pinged(tx: Connection, account_id: AccountId, now: datetime) -> bool:
    """Whether the account may ping now: its endpoint is enabled and was not pinged within the cooldown."""
    return await tx.fetchval(_PING, account_id, now, now - PING_COOLDOWN) is not None


async def note_calls(tx: Connection, outcomes: Sequence[WebhookOutcome], now: datetime) -> None:
    """Keep since when endpoints answer or fail; of several calls to a URL a 2xx counts."""
    calls = {(outcome.account_id, outcome.url) for outcome in outcomes if outcome.url is not None}
    taken = {(outcome.account_id, outcome.url) for outcome in outcomes if outcome.result is WebhookResult.SUCCEEDED}
    # In order: two transactions that change the same endpoints must not deadlock.
    for account_id, url in sorted(calls):
        await tx.execute(_ANSWERED if (account_id, url) in taken else _FAILED, account_id, url, now)


async def mark_failing(
    tx: Connection, account_id: AccountId, url: str, failing_before: datetime, now: datetime
) -> datetime | None:
    """Since when the endpoint fails, if that is before then and was not marked yet."""
    since: datetime | None = await tx.fetchval(_MARK_FAILING, account_id, url, failing_before, now)
    return since


async def disable(tx: Connection, account_id: AccountId, now: datetime) -> bool:
    """Nothing more is sent to the endpoint. False when there is none."""
    return await _changed(tx, _DISABLE, account_id, now, now=now)


async def delete(tx: Connection, account_id: AccountId, now: datetime) -> bool:
    """The endpoint is gone, its secret with it. False when there is none."""
    return await _changed(tx, _DELETE, account_id, now=now)


async def sealed_with(connection: Connection, key_ids: Sequence[str], limit: int) -> list[EndpointRow]:
    """Endpoints, of all accounts, whose secrets were sealed with one of these."""
    return [_endpoint(row) for row in await connection.fetch(_SEALED_WITH, list(key_ids), limit)]


async def reseal(tx: Connection, endpoint: EndpointRow, secret_sealed: bytes) -> None:
    """The same secret under another seal, unless it was rotated since it was read."""
    await tx.execute(_RESEAL, endpoint.account_id, secret_sealed, endpoint.secret_sealed)


async def _changed(tx: Connection, statement: str, account_id: AccountId, *arguments: object, now: datetime) -> bool:
    is_there = await tx.fetchval(statement, account_id, *arguments) is not None
    if is_there:
        await touch(tx, account_id, now)
    return is_there


async def cancel_pending(tx: Connection, account_id: AccountId, limit: int = CHANGED_AT_ONCE_MAX) -> int:
    """Cancel what the account has pending; return how many. As many as `limit`: there may be more.

    What is being sent at this moment is not touched, and cancelled if it would have to be sent again. Nothing is
    cancelled while the endpoint is enabled.
    """
    rows = await tx.fetch(_LOCK_PENDING, account_id, limit)
    if rows:
        await cancel(tx, account_id, [tuple(row) for row in rows], DISABLED)
    return len(rows)


async def cancel(tx: Connection, account_id: AccountId, pending: Sequence[tuple[object, ...]], error: str) -> None:
    """End what is pending: ids in their order, places in `calls` that are locked, and attempts so far."""
    ids, places, attempts = columns(pending)
    await tx.execute(
        *_CANCEL.bind(
            account_id=account_id,
            lowest=ids[0],
            highest=ids[-1],
            places=places,
            ids=ids,
            attempts=attempts,
            error=error,
        )
    )


async def forget(tx: Connection, account_id: AccountId, limit: int = CHANGED_AT_ONCE_MAX) -> int:
    """Empty the account's log, the oldest first, with what is pending; return how many. 0: nothing is left.

    What is being sent at this moment will not be logged. Nothing is forgotten while the endpoint is enabled.
    """
    ids = [row["id"] for row in await tx.fetch(_OLDEST, account_id, limit)]
    if ids:
        # A range of ids, and so a part of the log that lies in one partition or in a few.
        part = account_id, ids[0], ids[-1]
        places = [row["place"] for row in await tx.fetch(_LOCK_RANGE, *part)]
        await tx.execute(_STRIKE, places)
        await tx.execute(_FORGET, *part)
    return len(ids)


async def find_delivery(
    connection: Connection, account_id: AccountId, delivery_id: UUID, endpoint_id: UUID | None = None
) -> WebhookDelivery | None:
    """Of this endpoint, or of the webhook."""
    rows = await connection.fetch(_DELIVERY_BY_ID, account_id, delivery_id, endpoint_id)
    return next(iter(await with_bodies(connection, account_id, rows, endpoint_id)), None)


async def enter_ping(
    tx: Connection,
    account_id: AccountId,
    event_id: UUID,
    delivery_id: UUID,
    body: bytes,
    now: datetime,
    next_at: datetime,
) -> WebhookDelivery | None:
    """A test event that is sent once. None when there is no enabled endpoint to send it to.

    It is due at `next_at`: now, or when the ticket that the caller publishes counts as lost.
    """
    if await tx.fetchval(
        *_ENTER.bind(
            account_id=account_id,
            id=delivery_id,
            event_id=event_id,
            type="webhook.test",
            message_id=None,
            position=None,
            max_attempts=1,
            replay_of=None,
            now=now,
            next_at=next_at,
        )
    ):
        await tx.execute(*_TEST_EVENT.bind(account_id=account_id, event_id=event_id, now=now, body=body))
    return await find_delivery(tx, account_id, delivery_id)


async def enter_replay(
    tx: Connection,
    original: WebhookDelivery,
    delivery_id: UUID,
    max_attempts: int,
    now: datetime,
    next_at: datetime,
) -> WebhookDelivery | None:
    """The same event once more, with all its attempts. None when there is no enabled endpoint, or no event any more.

    It is due at `next_at`: now, or when the ticket that the caller publishes counts as lost.
    """
    if original.request_body is None or b'"erased":true' in original.request_body:
        return None
    await tx.fetchval(
        *_ENTER.bind(
            account_id=original.account_id,
            id=delivery_id,
            event_id=original.event_id,
            type=original.type,
            message_id=original.message_id,
            position=original.position,
            max_attempts=max_attempts,
            replay_of=original.id,
            now=now,
            next_at=next_at,
        )
    )
    return await find_delivery(tx, original.account_id, delivery_id)


async def with_bodies(
    connection: Connection, account_id: AccountId, rows: Sequence[Row], endpoint_id: UUID | None
) -> list[WebhookDelivery]:
    """Several may have the same event; with the lowest and the highest id PostgreSQL skips the other days."""
    if not rows:
        return []
    ids = list({row["event_id"] for row in rows})
    found = await connection.fetch(
        *(_BODIES if endpoint_id is None else _ENDPOINT_BODIES).bind(
            account_id=account_id,
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


def _endpoint(row: Row) -> EndpointRow:
    values = dict(row)
    return EndpointRow(**{**values, "events": tuple(values["events"])})
