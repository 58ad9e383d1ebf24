"""The accepting transaction: many messages, decided one by one and written together.

The steps are several statements because a statement's snapshot is older than the locks it takes: keys
read by the statement that locked them could miss a message committed while it waited. So: try the
locks on all keys and lock the accounts in the order of their ids (`lock`), then read the keys with a
new snapshot (`recall`), decide in Python, then write (`write`). An account's row needs no second read:
after waiting for a row's lock, PostgreSQL reads the row again itself.
"""

from collections.abc import Sequence
from datetime import date, datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from posthouse.rules import message
from posthouse.rules.ids import AccountId, CredentialId, MessageId, RequestId
from posthouse.rules.limits import IDEMPOTENCY_LIFETIME_SECONDS
from posthouse.store.postgres import Connection, required
from posthouse.store.statement import statement

if TYPE_CHECKING:
    # A command that reads accounts needs no draft, and none of the cryptography that a draft imports.
    from posthouse.rules.draft import DraftRecipient

_LIFETIME: Final = timedelta(seconds=IDEMPOTENCY_LIFETIME_SECONDS)


class IdempotencyKey(NamedTuple):
    """An idempotency key in its scope."""

    account_id: AccountId
    credential_id: CredentialId
    text: str

    @property
    def lock_number(self) -> int:
        """The advisory lock of this key: two keys with the same number only wait for each other."""
        digest = blake2b(self.credential_id.bytes + self.text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)


class PreparedMessage(NamedTuple):
    """One message, ready to be written if its account may send it."""

    account_id: AccountId
    credential_id: CredentialId
    key: IdempotencyKey | None
    # A fingerprint with every known key; the first is stored.
    body_hash: bytes
    message_id: MessageId
    request_id: RequestId
    source: str
    sender: str
    envelope_sender: str
    subject: str
    tags: tuple[str, ...]
    template: str | None
    recipients: "Sequence[DraftRecipient]"
    credits: int
    mime: bytes
    # The domain in From.
    sender_domain: str | None = None
    # The destination of all recipients, if not their own domains: test mail and captured mail go to the simulator.
    routed_to: str | None = None
    mailing_list: str | None = None
    # Whether its recipients get a link to unsubscribe from the list.
    one_click: bool = False
    # The trace that the message belongs to, if it is traced.
    trace: bytes | None = None
    # As JSON text.
    metadata: str | None = None
    # The message is not sent before this time.
    send_at: datetime | None = None
    # No one may read the body, which is deleted once the message is final; the subject is not stored.
    forgets_content: bool = False

    @property
    def is_list(self) -> bool:
        return self.mailing_list is not None


class AccountQuotaRow(NamedTuple):
    """The part of an account's row that decides what it may send; locked if it is to be changed."""

    id: AccountId
    is_suspended: bool
    available: int
    rate_per_second: int | None
    rate_burst: int | None
    rate_full_at: datetime
    warmup_exempt: bool
    warmup_limits: tuple[int, ...] | None
    warmup_started_on: date | None
    warmup_day: date | None
    warmup_used: int
    # JSON.
    warmup_ahead: str | None
    recipients_full_at: datetime
    stored_on: date | None
    stored_bytes: int
    stored_test_bytes: int


class RefusedRow(NamedTuple):
    """What decides the answer to a refused request; `is_verified` is about the domain that was asked about."""

    is_suspended: bool
    rate_per_second: int | None
    rate_burst: int | None
    is_verified: bool
    remembered: "RememberedKey | None"


class Spending(NamedTuple):
    """The new values of one account's row after a group commit."""

    account_id: AccountId
    credits: int
    rate_full_at: datetime
    recipients_full_at: datetime
    stored_on: date | None
    stored_bytes: int
    stored_test_bytes: int
    warmup_started_on: date | None
    warmup_day: date | None
    warmup_used: int
    warmup_ahead: str | None = None


class RememberedKey(NamedTuple):
    body_hash: bytes
    message_id: MessageId
    expires_at: datetime


LOCK: Final = """
SELECT (SELECT array_agg(pg_try_advisory_xact_lock(number) ORDER BY place)
        FROM unnest($1::bigint[]) WITH ORDINALITY wanted(number, place)) AS granted,
       NULL::uuid AS id, NULL::boolean AS is_suspended, NULL::bigint AS available,
       NULL::integer AS rate_per_second, NULL::integer AS rate_burst, NULL::timestamptz AS rate_full_at,
       NULL::boolean AS warmup_exempt, NULL::integer[] AS warmup_limits,
       NULL::date AS warmup_started_on, NULL::date AS warmup_day, NULL::integer AS warmup_used,
       NULL::jsonb AS warmup_ahead, NULL::timestamptz AS recipients_full_at,
       NULL::date AS stored_on, NULL::bigint AS stored_bytes, NULL::bigint AS stored_test_bytes
UNION ALL
SELECT NULL, * FROM (
    SELECT id, suspended_at IS NOT NULL, available, rate_per_second, rate_burst, rate_full_at,
           warmup_exempt, warmup_limits, warmup_started_on, warmup_day, warmup_used, warmup_ahead,
           recipients_full_at, stored_on, stored_bytes, stored_test_bytes
    FROM accounts WHERE id = ANY($2::uuid[]) ORDER BY id FOR NO KEY UPDATE) account
"""

READ: Final = """
SELECT id, suspended_at IS NOT NULL, available, rate_per_second, rate_burst, rate_full_at,
       warmup_exempt, warmup_limits, warmup_started_on, warmup_day, warmup_used, warmup_ahead,
       recipients_full_at, stored_on, stored_bytes, stored_test_bytes
FROM accounts WHERE id = $1
"""
READ_MANY: Final = READ.replace("id = $1", "id = ANY($1::uuid[])")

# Everything that is needed to answer a request which is refused before the transaction.
READ_REFUSED: Final = statement("""
SELECT account.suspended_at IS NOT NULL AS is_suspended, account.rate_per_second, account.rate_burst,
       EXISTS (SELECT FROM domains
               WHERE account_id = :account_id AND name = :domain AND verified_at IS NOT NULL) AS is_verified,
       kept.body_hash, kept.message_id, kept.expires_at
FROM accounts account
LEFT JOIN LATERAL (
    SELECT body_hash, message_id, expires_at FROM idempotency
    WHERE account_id = :account_id AND credential_id = :credential_id AND key = :key LIMIT 1) kept ON true
WHERE account.id = :account_id
""")

# The limit keeps the lookup inside, key by key. A plain join that was planned while the table was empty
# reads the whole table from then on: 355 ms a key at 100,000 rows.
RECALL: Final = """
SELECT asked.account_id, asked.credential_id, asked.key, kept.body_hash, kept.message_id, kept.expires_at
FROM unnest($1::uuid[], $2::uuid[], $3::text[]) asked(account_id, credential_id, key)
CROSS JOIN LATERAL (
    SELECT body_hash, message_id, expires_at FROM idempotency
    WHERE account_id = asked.account_id AND credential_id = asked.credential_id AND key = asked.key LIMIT 1) kept
"""

FORGET: Final = """
DELETE FROM idempotency WHERE ctid = ANY(ARRAY(
    SELECT kept.place
    FROM unnest($1::uuid[], $2::uuid[], $3::text[]) old(account_id, credential_id, key)
    CROSS JOIN LATERAL (
        SELECT ctid AS place FROM idempotency
        WHERE account_id = old.account_id AND credential_id = old.credential_id AND key = old.key LIMIT 1) kept))
"""

REMEMBER: Final = """
INSERT INTO idempotency (account_id, credential_id, key, body_hash, message_id, expires_at)
VALUES ($1, $2, $3, $4, $5, $6)
"""

WRITE: Final = statement("""
WITH charged AS (
    UPDATE accounts SET available = available - spent.credits, rate_full_at = spent.rate_full_at,
        recipients_full_at = spent.recipients_full_at, stored_on = spent.stored_on,
        stored_bytes = spent.stored_bytes, stored_test_bytes = spent.stored_test_bytes,
        warmup_started_on = spent.warmup_started_on, warmup_day = spent.warmup_day,
        warmup_used = spent.warmup_used, warmup_ahead = spent.warmup_ahead
    FROM unnest(:spendings::account_spending[]) spent
    WHERE accounts.id = spent.account_id
      AND accounts.id = ANY(ARRAY(SELECT account_id FROM unnest(:spendings::account_spending[])))
), accepted AS MATERIALIZED (
    SELECT * FROM unnest(:messages::accepted_message[])
), remembered AS (
    INSERT INTO idempotency (account_id, credential_id, key, body_hash, message_id, expires_at)
    SELECT account_id, key_credential_id, key, body_hash, message_id, :keys_expire_at::timestamptz
    FROM accepted WHERE key IS NOT NULL
), kept AS (
    INSERT INTO messages (account_id, id, credential_id, request_id, source, sender, envelope_sender, subject,
        tags, template, recipient_count, credits_reserved, open_count, created_at, mailing_list, one_click,
        trace, metadata, send_at)
    SELECT account_id, message_id, credential_id, request_id, source, sender, envelope_sender, subject,
        tags, template, cardinality(recipients), credits, cardinality(recipients), :now::timestamptz,
        mailing_list, one_click, trace, metadata, send_at
    FROM accepted
), embodied AS (
    INSERT INTO bodies (account_id, message_id, mime) SELECT account_id, message_id, mime FROM accepted
), reserved AS (
    INSERT INTO ledger (account_id, message_id, position, kind, amount, at)
    SELECT account_id, message_id, -1, 'reserve', credits, :now::timestamptz FROM accepted WHERE credits > 0
), addressed AS MATERIALIZED (
    SELECT account_id, message_id, number - 1 AS position, field, email,
        coalesce(routed_to, destination) AS destination, sender_domain, mailing_list, send_at
    FROM accepted CROSS JOIN LATERAL unnest(recipients) WITH ORDINALITY recipient(field, email, destination, number)
), named AS (
    INSERT INTO recipients (account_id, message_id, position, field, email)
    SELECT account_id, message_id, position, field, email FROM addressed
)
-- A null takes no space in the row.
INSERT INTO delivery_schedule (account_id, message_id, position, destination, sender, is_list, send_at, next_at)
SELECT account_id, message_id, position, destination, sender_domain,
    CASE WHEN mailing_list IS NOT NULL THEN true END, send_at,
    CASE WHEN send_at > :now::timestamptz THEN send_at ELSE :due_at::timestamptz END
FROM addressed
""")

# The bounds keep PostgreSQL from opening the partitions of other days.
FORGET_CONTENT: Final = """
WITH marked AS (
    UPDATE messages SET forgets_content = true
    WHERE account_id = ANY($1::uuid[]) AND id = ANY($2::uuid[]) AND id >= $3 AND id <= $4
)
INSERT INTO bodies_to_delete (account_id, message_id) SELECT * FROM unnest($1::uuid[], $2::uuid[])
"""


async def limit_waiting(tx: Connection, milliseconds: int) -> None:
    """Give up on a lock sooner than usual, until the transaction ends."""
    await tx.execute("SELECT set_config('lock_timeout', $1, true)", str(milliseconds))


async def write_ahead(tx: Connection) -> None:
    """Write a WAL record, so that the commit waits for the standbys like one that changes rows."""
    await tx.execute("SELECT pg_logical_emit_message(true, 'posthouse', '')")


async def lock(
    tx: Connection, keys: Sequence[IdempotencyKey], account_ids: Sequence[AccountId]
) -> tuple[dict[IdempotencyKey, bool], dict[AccountId, AccountQuotaRow]]:
    """Try the lock of every key, and lock every account's row, in the order of their ids."""
    rows = await tx.fetch(LOCK, [key.lock_number for key in keys], account_ids)
    granted = dict(zip(keys, rows[0]["granted"] or (), strict=True))
    return granted, {row["id"]: AccountQuotaRow(*tuple(row)[1:]) for row in rows[1:]}


async def read(connection: Connection, account_id: AccountId) -> AccountQuotaRow:
    """The account's row as it is now; takes no lock."""
    return AccountQuotaRow(*required(await connection.fetchrow(READ, account_id)))


async def read_many(connection: Connection, account_ids: Sequence[AccountId]) -> list[AccountQuotaRow]:
    return [AccountQuotaRow(*row) for row in await connection.fetch(READ_MANY, account_ids)]


async def read_refused(
    connection: Connection, account_id: AccountId, key: IdempotencyKey | None, domain: str | None
) -> RefusedRow:
    credential_id, text = (None, None) if key is None else (key.credential_id, key.text)
    row = required(
        await connection.fetchrow(
            *READ_REFUSED.bind(account_id=account_id, credential_id=credential_id, key=text, domain=domain)
        )
    )
    return RefusedRow(
        is_suspended=row["is_suspended"],
        rate_per_second=row["rate_per_second"],
        rate_burst=row["rate_burst"],
        is_verified=row["is_verified"],
        remembered=(
            None if row["message_id"] is None else RememberedKey(row["body_hash"], row["message_id"], row["expires_at"])
        ),
    )


async def recall(connection: Connection, keys: Sequence[IdempotencyKey]) -> dict[IdempotencyKey, RememberedKey]:
    """What is stored about these keys, expired or not."""
    rows = await connection.fetch(RECALL, *_columns(keys))
    return {
        IdempotencyKey(row["account_id"], row["credential_id"], row["key"]): RememberedKey(
            row["body_hash"], row["message_id"], row["expires_at"]
        )
        for row in rows
    }


async def forget(tx: Connection, keys: Sequence[IdempotencyKey]) -> None:
    await tx.execute(FORGET, *_columns(keys))


async def remember(tx: Connection, key: IdempotencyKey, body_hash: bytes, message_id: MessageId, now: datetime) -> None:
    """Store the key of a batch request, with one of its messages; `write` stores the keys of single messages."""
    await tx.execute(REMEMBER, *key, message.stored_fingerprint(body_hash), message_id, now + _LIFETIME)


async def write(
    tx: Connection, entries: Sequence[PreparedMessage], spendings: Sequence[Spending], now: datetime, due_at: datetime
) -> None:
    """Write accepted messages with everything that belongs to them, and what they cost.

    Their recipients are due at `due_at`: now, or later where tickets for them are published immediately; those with
    a future `send_at` are due then.
    """
    await tx.execute(*write_call(entries, spendings, now, due_at))
    # Separate from the statement above, since the content of nearly all mail is kept.
    if forgetting := [entry for entry in entries if entry.forgets_content]:
        message_ids = [entry.message_id for entry in forgetting]
        account_ids = [entry.account_id for entry in forgetting]
        await tx.execute(FORGET_CONTENT, account_ids, message_ids, min(message_ids), max(message_ids))


def write_call(
    entries: Sequence[PreparedMessage], spendings: Sequence[Spending], now: datetime, due_at: datetime
) -> tuple[Any, ...]:
    """The statement and its arguments."""
    return WRITE.bind(
        now=now,
        due_at=due_at,
        keys_expire_at=now + _LIFETIME,
        spendings=spendings,
        messages=[_row(entry) for entry in entries],
    )


def _row(entry: PreparedMessage) -> tuple[object, ...]:
    """As the type `accepted_message`."""
    key = entry.key
    return (
        entry.account_id,
        entry.message_id,
        entry.credential_id,
        entry.request_id,
        None if key is None else key.credential_id,
        None if key is None else key.text,
        message.stored_fingerprint(entry.body_hash),
        entry.source,
        entry.sender,
        entry.sender_domain,
        entry.envelope_sender,
        entry.subject,
        entry.tags or None,
        entry.metadata,
        entry.template,
        entry.mailing_list,
        entry.one_click,
        entry.credits,
        entry.send_at,
        entry.trace,
        entry.mime,
        entry.routed_to,
        entry.recipients,
    )


def _columns(keys: Sequence[IdempotencyKey]) -> tuple[list[AccountId], list[CredentialId], list[str]]:
    return (
        [key.account_id for key in keys],
        [key.credential_id for key in keys],
        [key.text for key in keys],
    )
