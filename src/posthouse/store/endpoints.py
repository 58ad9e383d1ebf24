"""The endpoints of accounts: URLs that events are sent to, with their secrets.

The account's webhook is the endpoint whose id is the account's (`webhook_id`). To disable an endpoint, `save` it, then
call `webhook_log.cancel_pending` until nothing is left. To delete it, `disable` it, call `cancel_pending`, or `forget`
for the webhook, until nothing is left, then `delete` it: after an interruption, a second try finds an endpoint that
exists and is disabled, and deliveries that are claimed meanwhile are cancelled. The account's row is locked last.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from posthouse.rules.credential import Mode
from posthouse.rules.endpoint import Filters
from posthouse.rules.ids import AccountId
from posthouse.store.accounts import touch
from posthouse.store.postgres import Connection, Row, required
from posthouse.store.statement import statement
from posthouse.store.webhook_schedule import WebhookOutcome, WebhookResult

PING_COOLDOWN: Final = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`answered_at` is the URL's first 2xx, `failing_since` the first failed call after its last 2xx; a new URL has
    neither. Previous secrets sign until `previous_until` at most.
    """

    account_id: AccountId
    id: UUID
    url: str
    filters: Filters
    header_names: tuple[str, ...]
    enabled: bool
    created_at: datetime
    updated_at: datetime
    pinged_at: datetime | None
    answered_at: datetime | None
    failing_since: datetime | None
    previous_until: datetime | None
    headers_sealed: bytes | None = field(repr=False)
    secret_sealed: bytes = field(repr=False)
    previous_secret_sealed: bytes | None = field(repr=False)

    @property
    def is_webhook(self) -> bool:
        return self.id == self.account_id


_ENDPOINT: Final = """
account_id, id, url, types, sender_domains, tags, mode, header_names, enabled, created_at, updated_at, pinged_at,
answered_at, failing_since, previous_until, headers_sealed, secret_sealed, previous_secret_sealed
"""
_FILTERS: Final = ("types", "sender_domains", "tags", "mode")
_COUNT: Final = "SELECT count(*) FROM endpoints WHERE account_id = $1 AND id <> account_id"
# No two sealed secrets are alike: a caller that gets its own back has created the row.
_SAVE: Final = statement(f"""
INSERT INTO endpoints (account_id, id, url, types, sender_domains, tags, mode, header_names, headers_sealed, enabled,
    secret_sealed, created_at, updated_at)
VALUES (:account_id, :id, :url, :types, :sender_domains, :tags, :mode, :header_names, :headers_sealed, :enabled,
    :secret_sealed, :now, :now)
ON CONFLICT (account_id, id) DO UPDATE SET url = excluded.url, types = excluded.types,
    sender_domains = excluded.sender_domains, tags = excluded.tags, mode = excluded.mode,
    header_names = excluded.header_names, headers_sealed = excluded.headers_sealed, enabled = excluded.enabled,
    updated_at = greatest(endpoints.updated_at, excluded.updated_at),
    answered_at = CASE WHEN endpoints.url = excluded.url THEN endpoints.answered_at END,
    failing_since = CASE WHEN endpoints.url = excluded.url THEN endpoints.failing_since END,
    failing_noted_at = CASE WHEN endpoints.url = excluded.url THEN endpoints.failing_noted_at END
RETURNING {_ENDPOINT}
""")
_FIND: Final = f"SELECT {_ENDPOINT} FROM endpoints WHERE account_id = $1 AND id = $2"
_LOCK: Final = f"{_FIND} FOR NO KEY UPDATE"
_ALL: Final = f"SELECT {_ENDPOINT} FROM endpoints WHERE account_id = $1 AND id <> account_id ORDER BY id"
_DISABLE: Final = """
UPDATE endpoints SET enabled = false, updated_at = greatest(updated_at, $3) WHERE account_id = $1 AND id = $2
RETURNING 1
"""
_DELETE: Final = "DELETE FROM endpoints WHERE account_id = $1 AND id = $2 RETURNING 1"
_ROTATE: Final = """
UPDATE endpoints SET secret_sealed = $3, previous_secret_sealed = $4, previous_until = $5,
    updated_at = greatest(updated_at, $6)
WHERE account_id = $1 AND id = $2 RETURNING 1
"""
# Of two simultaneous transactions the second waits for the first, and then sees what it wrote.
_LOCK_PINGED: Final = """
SELECT pinged_at FROM endpoints WHERE account_id = $1 AND (id = account_id) = ($2::uuid = account_id)
ORDER BY id FOR NO KEY UPDATE
"""
_PING: Final = "UPDATE endpoints SET pinged_at = $3 WHERE account_id = $1 AND id = $2"
# Only for the URL that was called: a new URL has not answered yet.
_ANSWERED: Final = """
UPDATE endpoints SET answered_at = coalesce(answered_at, $4), failing_since = NULL, failing_noted_at = NULL
WHERE account_id = $1 AND id = $2 AND url = $3
"""
_FAILED: Final = """
UPDATE endpoints SET failing_since = $4 WHERE account_id = $1 AND id = $2 AND url = $3 AND failing_since IS NULL
"""
# Once in a period of failure: a 2xx ends it.
_MARK_FAILING: Final = """
UPDATE endpoints SET failing_noted_at = $5
WHERE account_id = $1 AND id = $2 AND url = $3 AND enabled AND failing_since <= $4 AND failing_noted_at IS NULL
RETURNING failing_since
"""
# The key's id is readable in the sealed value: a version byte, a length, the id.
_SEALED_WITH: Final = f"""
SELECT {_ENDPOINT} FROM endpoints
WHERE EXISTS (
    SELECT FROM unnest(ARRAY[secret_sealed, previous_secret_sealed, headers_sealed]) sealed
    WHERE convert_from(substring(sealed FROM 3 FOR get_byte(sealed, 1)), 'UTF8') = ANY($1::text[]))
LIMIT $2
"""
_RESEAL: Final = """
UPDATE endpoints SET secret_sealed = $3, previous_secret_sealed = $4, headers_sealed = $5
WHERE account_id = $1 AND id = $2 AND secret_sealed = $6 AND headers_sealed IS NOT DISTINCT FROM $7
"""


def webhook_id(account_id: AccountId) -> UUID:
    return account_id


def secret_purpose(account_id: AccountId, endpoint_id: UUID) -> bytes:
    """The purpose that an endpoint's secrets are sealed for; they can't be opened for another."""
    return b"endpoint:" + account_id.bytes + endpoint_id.bytes


def headers_purpose(account_id: AccountId, endpoint_id: UUID) -> bytes:
    return b"endpoint-headers:" + account_id.bytes + endpoint_id.bytes


def sealed_values(endpoint: Endpoint) -> list[tuple[bytes | None, bytes]]:
    """The secret, the previous ones, and the headers; each with its purpose."""
    purpose = secret_purpose(endpoint.account_id, endpoint.id)
    return [
        (endpoint.secret_sealed, purpose),
        (endpoint.previous_secret_sealed, purpose),
        (endpoint.headers_sealed, headers_purpose(endpoint.account_id, endpoint.id)),
    ]


async def count_for_one_more(tx: Connection, account_id: AccountId, now: datetime) -> int:
    """How many the account has besides its webhook; no other request adds one until the transaction ends."""
    await touch(tx, account_id, now)
    count: int = await tx.fetchval(_COUNT, account_id)
    return count


async def save(
    tx: Connection,
    account_id: AccountId,
    endpoint_id: UUID,
    url: str,
    filters: Filters,
    enabled: bool,
    secret_sealed: bytes,
    now: datetime,
    header_names: Iterable[str] = (),
    headers_sealed: bytes | None = None,
) -> tuple[Endpoint, bool]:
    """Returns the saved endpoint, and whether it is new. An existing endpoint keeps its secret.

    Pending deliveries are sent to the new URL; if the endpoint is disabled now, the caller must cancel them.
    """
    row = required(
        await tx.fetchrow(
            *_SAVE.bind(
                account_id=account_id,
                id=endpoint_id,
                url=url,
                types=list(filters.types),
                sender_domains=list(filters.sender_domains),
                tags=list(filters.tags),
                mode=filters.mode,
                header_names=list(header_names),
                headers_sealed=headers_sealed,
                enabled=enabled,
                secret_sealed=secret_sealed,
                now=now,
            )
        )
    )
    await touch(tx, account_id, now)
    return _endpoint(row), row["secret_sealed"] == secret_sealed


async def find(connection: Connection, account_id: AccountId, endpoint_id: UUID) -> Endpoint | None:
    row = await connection.fetchrow(_FIND, account_id, endpoint_id)
    return None if row is None else _endpoint(row)


async def lock(tx: Connection, account_id: AccountId, endpoint_id: UUID) -> Endpoint | None:
    row = await tx.fetchrow(_LOCK, account_id, endpoint_id)
    return None if row is None else _endpoint(row)


async def all_of(connection: Connection, account_id: AccountId) -> list[Endpoint]:
    """Those besides the webhook."""
    return [_endpoint(row) for row in await connection.fetch(_ALL, account_id)]


async def disable(tx: Connection, account_id: AccountId, endpoint_id: UUID, now: datetime) -> bool:
    """Stop sending to the endpoint. False if there is none."""
    return await _changed(tx, _DISABLE, account_id, endpoint_id, now, now=now)


async def delete(tx: Connection, account_id: AccountId, endpoint_id: UUID, now: datetime) -> bool:
    """Delete the endpoint and its secrets. False if there is none."""
    return await _changed(tx, _DELETE, account_id, endpoint_id, now=now)


async def rotate_secret(
    tx: Connection,
    account_id: AccountId,
    endpoint_id: UUID,
    secret_sealed: bytes,
    now: datetime,
    previous_secret_sealed: bytes | None = None,
    previous_until: datetime | None = None,
) -> bool:
    """Replace the secret; previous secrets, sealed together, still sign, the last until then. False without endpoint.

    Without previous secrets the old one ends immediately, also for pending deliveries.
    """
    new = secret_sealed, previous_secret_sealed, previous_until
    return await _changed(tx, _ROTATE, account_id, endpoint_id, *new, now, now=now)


async def mark_pinged(tx: Connection, account_id: AccountId, endpoint_id: UUID, now: datetime) -> datetime | None:
    """None if the account may ping now, which is noted; otherwise when it last pinged.

    The endpoints besides the webhook have their cooldown in common.
    """
    rows = await tx.fetch(_LOCK_PINGED, account_id, endpoint_id)
    pinged_at: datetime | None = max((row["pinged_at"] for row in rows if row["pinged_at"] is not None), default=None)
    if pinged_at is not None and pinged_at > now - PING_COOLDOWN:
        return pinged_at
    await tx.execute(_PING, account_id, endpoint_id, now)
    return None


async def note_calls(tx: Connection, outcomes: Sequence[WebhookOutcome], now: datetime) -> None:
    """Store since when endpoints answer or fail; of several calls to a URL a 2xx counts."""
    calls = [
        ((outcome.account_id, outcome.changed_endpoint, outcome.url), outcome.result is WebhookResult.SUCCEEDED)
        for outcome in outcomes
        if outcome.changed_endpoint is not None and outcome.url is not None
    ]
    taken = {call for call, is_taken in calls if is_taken}
    # In order: two transactions that change the same endpoints must not deadlock.
    for call in sorted({call for call, _ in calls}):
        await tx.execute(_ANSWERED if call in taken else _FAILED, *call, now)


async def mark_failing(
    tx: Connection, account_id: AccountId, endpoint_id: UUID, url: str, failing_before: datetime, now: datetime
) -> datetime | None:
    """Since when the endpoint has been failing, if that is before then and was not marked yet; marks it."""
    since: datetime | None = await tx.fetchval(_MARK_FAILING, account_id, endpoint_id, url, failing_before, now)
    return since


async def sealed_with(connection: Connection, key_ids: Sequence[str], limit: int) -> list[Endpoint]:
    """Endpoints of all accounts that have a value sealed with one of these."""
    return [_endpoint(row) for row in await connection.fetch(_SEALED_WITH, list(key_ids), limit)]


async def reseal(tx: Connection, endpoint: Endpoint, sealed: Sequence[bytes | None]) -> None:
    """The same `sealed_values` under another seal, unless they were changed since they were read."""
    key = endpoint.account_id, endpoint.id
    await tx.execute(_RESEAL, *key, *sealed, endpoint.secret_sealed, endpoint.headers_sealed)


async def _changed(
    tx: Connection, change: str, account_id: AccountId, endpoint_id: UUID, *arguments: object, now: datetime
) -> bool:
    is_there = await tx.fetchval(change, account_id, endpoint_id, *arguments) is not None
    if is_there:
        await touch(tx, account_id, now)
    return is_there


def filters_of(row: Row) -> Filters:
    mode = row["mode"]
    return Filters(
        tuple(row["types"]),
        tuple(row["sender_domains"]),
        tuple(row["tags"]),
        None if mode is None else Mode(mode),
    )


def _endpoint(row: Row) -> Endpoint:
    values = {name: row[name] for name in row.keys() if name not in _FILTERS}  # noqa: SIM118
    return Endpoint(**{**values, "header_names": tuple(values["header_names"])}, filters=filters_of(row))
