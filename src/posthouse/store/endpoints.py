"""Endpoints of accounts, beside their webhooks.

What is sent to them is in the tables of webhook deliveries, under the endpoint's id; those without one are the
webhook's. Deleting is to `disable`, to `cancel_pending` until nothing is left, then to `delete`; the log's rows stay as
long as any, and lead nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from posthouse.rules.credential import Mode
from posthouse.rules.endpoint import Filters
from posthouse.rules.ids import AccountId
from posthouse.store.accounts import touch
from posthouse.store.postgres import Connection, Row, required
from posthouse.store.statement import statement
from posthouse.store.webhook_schedule import DISABLED, WebhookOutcome, WebhookResult
from posthouse.store.webhooks import CHANGED_AT_ONCE_MAX, PING_COOLDOWN, cancel


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`answered_at` and `failing_since` as of a webhook; the last of the secrets before signs until then."""

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


_ENDPOINT: Final = """
account_id, id, url, types, sender_domains, tags, mode, header_names, enabled, created_at, updated_at, pinged_at,
answered_at, failing_since, previous_until, headers_sealed, secret_sealed, previous_secret_sealed
"""
_COUNT: Final = "SELECT count(*) FROM endpoints WHERE account_id = $1"
_OLD_WORKERS: Final = "SELECT EXISTS (SELECT FROM workers WHERE NOT knows_endpoints AND expires_at > $1)"
_ADD: Final = statement(f"""
INSERT INTO endpoints (account_id, id, url, types, sender_domains, tags, mode, header_names, headers_sealed, enabled,
    secret_sealed, created_at, updated_at)
VALUES (:account_id, :id, :url, :types, :sender_domains, :tags, :mode, :header_names, :headers_sealed, :enabled,
    :secret_sealed, :now, :now)
RETURNING {_ENDPOINT}
""")
# Without `header_names`, the headers stay.
_SAVE: Final = statement(f"""
UPDATE endpoints SET url = :url, types = :types, sender_domains = :sender_domains, tags = :tags, mode = :mode,
    headers_sealed = CASE WHEN :header_names::text[] IS NULL THEN headers_sealed ELSE :headers_sealed END,
    header_names = coalesce(:header_names, header_names),
    enabled = :enabled, updated_at = greatest(updated_at, :now),
    answered_at = CASE WHEN url = :url THEN answered_at END,
    failing_since = CASE WHEN url = :url THEN failing_since END,
    failing_noted_at = CASE WHEN url = :url THEN failing_noted_at END
WHERE account_id = :account_id AND id = :id
RETURNING {_ENDPOINT}
""")
_FIND: Final = f"SELECT {_ENDPOINT} FROM endpoints WHERE account_id = $1 AND id = $2"
_LOCK: Final = f"{_FIND} FOR NO KEY UPDATE"
_ALL: Final = f"SELECT {_ENDPOINT} FROM endpoints WHERE account_id = $1 ORDER BY id"
_DISABLE: Final = """
UPDATE endpoints SET enabled = false, updated_at = greatest(updated_at, $3) WHERE account_id = $1 AND id = $2
RETURNING 1
"""
_DELETE: Final = "DELETE FROM endpoints WHERE account_id = $1 AND id = $2 RETURNING 1"
_ROTATE: Final = statement("""
UPDATE endpoints SET previous_secret_sealed = :previous_secret_sealed, previous_until = :previous_until,
    secret_sealed = :secret_sealed, updated_at = greatest(updated_at, :now)
WHERE account_id = :account_id AND id = :id
""")
_LOCK_ACCOUNT: Final = "SELECT FROM accounts WHERE id = $1 FOR NO KEY UPDATE"
_PINGED_AT: Final = "SELECT max(pinged_at) FROM endpoints WHERE account_id = $1"
_PING: Final = "UPDATE endpoints SET pinged_at = $3 WHERE account_id = $1 AND id = $2"
# Of the URL that was called: a new one has not answered.
_ANSWERED: Final = """
UPDATE endpoints SET answered_at = coalesce(answered_at, $4), failing_since = NULL, failing_noted_at = NULL
WHERE account_id = $1 AND id = $2 AND url = $3
"""
_FAILED: Final = """
UPDATE endpoints SET failing_since = $4 WHERE account_id = $1 AND id = $2 AND url = $3 AND failing_since IS NULL
"""
_MARK_FAILING: Final = """
UPDATE endpoints SET failing_noted_at = $5
WHERE account_id = $1 AND id = $2 AND url = $3 AND enabled AND failing_since <= $4 AND failing_noted_at IS NULL
RETURNING failing_since
"""
_LOCK_PENDING: Final = """
SELECT id, ctid AS place, attempt_count FROM calls
WHERE account_id = $1 AND endpoint_id = $2 AND worker_id IS NULL
  AND NOT EXISTS (SELECT FROM endpoints WHERE account_id = $1 AND id = $2 AND enabled)
ORDER BY id LIMIT $3 FOR NO KEY UPDATE
"""
_OF_DELIVERY: Final = "SELECT endpoint_id FROM webhook_deliveries WHERE account_id = $1 AND id = $2"
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


def secret_purpose(account_id: AccountId, endpoint_id: UUID) -> bytes:
    """What an endpoint's secrets are sealed for; they open nowhere else."""
    return b"endpoint:" + account_id.bytes + endpoint_id.bytes


def headers_purpose(account_id: AccountId, endpoint_id: UUID) -> bytes:
    return b"endpoint-headers:" + account_id.bytes + endpoint_id.bytes


async def count_for_one_more(tx: Connection, account_id: AccountId, now: datetime) -> int:
    """How many the account has; no other request adds one until the transaction ends."""
    await touch(tx, account_id, now)
    count: int = await tx.fetchval(_COUNT, account_id)
    return count


async def has_old_workers(connection: Connection, now: datetime) -> bool:
    """Whether a process of a version without endpoints records results or sends webhooks."""
    return bool(await connection.fetchval(_OLD_WORKERS, now))


async def add(
    tx: Connection,
    account_id: AccountId,
    endpoint_id: UUID,
    url: str,
    filters: Filters,
    header_names: Sequence[str],
    headers_sealed: bytes | None,
    enabled: bool,
    secret_sealed: bytes,
    now: datetime,
) -> Endpoint:
    row = await tx.fetchrow(
        *_ADD.bind(
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
    return _endpoint(required(row))


async def save(
    tx: Connection,
    account_id: AccountId,
    endpoint_id: UUID,
    url: str,
    filters: Filters,
    header_names: Sequence[str] | None,
    headers_sealed: bytes | None,
    enabled: bool,
    now: datetime,
) -> Endpoint:
    """The locked endpoint, as it is then. Without `header_names` its headers stay."""
    row = await tx.fetchrow(
        *_SAVE.bind(
            account_id=account_id,
            id=endpoint_id,
            url=url,
            types=list(filters.types),
            sender_domains=list(filters.sender_domains),
            tags=list(filters.tags),
            mode=filters.mode,
            header_names=None if header_names is None else list(header_names),
            headers_sealed=headers_sealed,
            enabled=enabled,
            now=now,
        )
    )
    return _endpoint(required(row))


async def find(connection: Connection, account_id: AccountId, endpoint_id: UUID) -> Endpoint | None:
    row = await connection.fetchrow(_FIND, account_id, endpoint_id)
    return None if row is None else _endpoint(row)


async def lock(tx: Connection, account_id: AccountId, endpoint_id: UUID) -> Endpoint | None:
    row = await tx.fetchrow(_LOCK, account_id, endpoint_id)
    return None if row is None else _endpoint(row)


async def all_of(connection: Connection, account_id: AccountId) -> list[Endpoint]:
    return [_endpoint(row) for row in await connection.fetch(_ALL, account_id)]


async def disable(tx: Connection, account_id: AccountId, endpoint_id: UUID, now: datetime) -> bool:
    return await tx.fetchval(_DISABLE, account_id, endpoint_id, now) is not None


async def delete(tx: Connection, account_id: AccountId, endpoint_id: UUID) -> bool:
    return await tx.fetchval(_DELETE, account_id, endpoint_id) is not None


async def rotate_secret(
    tx: Connection,
    account_id: AccountId,
    endpoint_id: UUID,
    secret_sealed: bytes,
    previous_secret_sealed: bytes,
    previous_until: datetime,
    now: datetime,
) -> None:
    """Of the locked endpoint; the earlier secrets, sealed together, sign too, the last of them until then."""
    await tx.execute(
        *_ROTATE.bind(
            account_id=account_id,
            id=endpoint_id,
            secret_sealed=secret_sealed,
            previous_secret_sealed=previous_secret_sealed,
            previous_until=previous_until,
            now=now,
        )
    )


async def mark_pinged(tx: Connection, account_id: AccountId, endpoint_id: UUID, now: datetime) -> datetime | None:
    """None if the account may ping now, and has; otherwise when it pinged any of its endpoints."""
    await tx.execute(_LOCK_ACCOUNT, account_id)
    pinged_at: datetime | None = await tx.fetchval(_PINGED_AT, account_id)
    if pinged_at is not None and pinged_at > now - PING_COOLDOWN:
        return pinged_at
    await tx.execute(_PING, account_id, endpoint_id, now)
    return None


async def note_calls(tx: Connection, outcomes: Sequence[WebhookOutcome], now: datetime) -> None:
    """Keep since when endpoints answer or fail; of several calls to a URL a 2xx counts."""
    calls = {
        (outcome.account_id, outcome.endpoint_id, outcome.url)
        for outcome in outcomes
        if outcome.url is not None and outcome.endpoint_id is not None
    }
    taken = {
        (outcome.account_id, outcome.endpoint_id, outcome.url)
        for outcome in outcomes
        if outcome.result is WebhookResult.SUCCEEDED
    }
    # In order: two transactions that change the same endpoints must not deadlock.
    for call in sorted(calls):
        await tx.execute(_ANSWERED if call in taken else _FAILED, *call, now)


async def mark_failing(
    tx: Connection, account_id: AccountId, endpoint_id: UUID, url: str, failing_before: datetime, now: datetime
) -> datetime | None:
    """Since when the endpoint fails, if that is before then and was not marked yet."""
    since: datetime | None = await tx.fetchval(_MARK_FAILING, account_id, endpoint_id, url, failing_before, now)
    return since


async def cancel_pending(
    tx: Connection, account_id: AccountId, endpoint_id: UUID, limit: int = CHANGED_AT_ONCE_MAX
) -> int:
    """As for a webhook: cancel what is pending for a disabled endpoint; as many as `limit`: there may be more."""
    rows = await tx.fetch(_LOCK_PENDING, account_id, endpoint_id, limit)
    if rows:
        await cancel(tx, account_id, [tuple(row) for row in rows], DISABLED)
    return len(rows)


async def of_delivery(connection: Connection, account_id: AccountId, delivery_id: UUID) -> UUID | None:
    """The endpoint that the delivery is for; None for the webhook's, and for one that doesn't exist."""
    endpoint_id: UUID | None = await connection.fetchval(_OF_DELIVERY, account_id, delivery_id)
    return endpoint_id


async def sealed_with(connection: Connection, key_ids: Sequence[str], limit: int) -> list[Endpoint]:
    """Endpoints, of all accounts, of which something was sealed with one of these."""
    return [_endpoint(row) for row in await connection.fetch(_SEALED_WITH, list(key_ids), limit)]


async def reseal(
    tx: Connection, endpoint: Endpoint, secret: bytes, previous_secret: bytes | None, headers: bytes | None
) -> None:
    """The same secrets and headers under another seal, unless they were changed since they were read."""
    await tx.execute(
        _RESEAL,
        endpoint.account_id,
        endpoint.id,
        secret,
        previous_secret,
        headers,
        endpoint.secret_sealed,
        endpoint.headers_sealed,
    )


def _endpoint(row: Row) -> Endpoint:
    values = dict(row)
    mode = values.pop("mode")
    filters = Filters(
        tuple(values.pop("types")),
        tuple(values.pop("sender_domains")),
        tuple(values.pop("tags")),
        None if mode is None else Mode(mode),
    )
    return Endpoint(**{**values, "header_names": tuple(values["header_names"])}, filters=filters)
