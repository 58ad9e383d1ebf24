"""Bounce and complaint reports: their message and account, a row for each, and suppressed addresses."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple
from uuid import UUID

from posthouse.rules.ids import AccountId, MessageId
from posthouse.rules.reports import ReportNote
from posthouse.store.postgres import Connection, storable
from posthouse.store.statement import statement

# A recipient can invent any number of reports about a message. Reports that suppress an address are always stored: they
# are few for each recipient, and count for reputation.
REPORTS_A_MESSAGE_MAX: Final = 100
TEXT_CHARACTERS_MAX: Final = 2_000


class ReportedMessage(NamedTuple):
    """The message's account, its recipients by position, and who complained with a token that others also got."""

    account_id: AccountId
    recipients: Mapping[int, str]
    complainer: int | None


class NewSuppression(NamedTuple):
    account_id: AccountId
    email: str
    reason: str
    code: int | None
    response: str


_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('posthouse.feedback', 0) # $1)"

# Accounts whose ids end alike are few; one of them, or none, has the message.
_FIND: Final = """
SELECT owner.account_id, recipient.position, recipient.email, (
    SELECT position FROM reports
    WHERE account_id = owner.account_id AND message_id = $1 AND kind = 'complaint' AND suppressed AND shared
    LIMIT 1) AS complainer
FROM (
    SELECT accounts.id AS account_id
    FROM accounts CROSS JOIN LATERAL (
        SELECT FROM messages WHERE account_id = accounts.id AND id = $1 LIMIT 1) message
    WHERE substring(uuid_send(accounts.id) FROM 13) = $2
    LIMIT 1) owner
CROSS JOIN LATERAL (
    SELECT position, email FROM recipients WHERE account_id = owner.account_id AND message_id = $1) recipient
ORDER BY recipient.position
"""

_TAKEN: Final = """
SELECT DISTINCT position FROM attempts
WHERE account_id = $1 AND message_id = $2 AND outcome = 'delivered' AND remote_ip = $3
"""

_NOTE: Final = statement("""
INSERT INTO reports (
    account_id, message_id, id, position, kind, detail, status, code, response, suppressed, shared, at)
SELECT :account_id, :message_id, note.id, note.position, note.kind, note.detail, note.status, note.code, note.response,
    note.suppressed, note.shared, :now
FROM unnest(:ids::uuid[], :positions::smallint[], :kinds::text[], :details::text[], :statuses::text[],
    :codes::smallint[], :responses::text[],
    :suppressed::boolean[], :shared::boolean[])
    WITH ORDINALITY note(id, position, kind, detail, status, code, response, suppressed, shared, number)
WHERE note.suppressed OR note.number + (
    SELECT count(*) FROM reports WHERE account_id = :account_id AND message_id = :message_id
        AND NOT suppressed) <= :reports_max
ON CONFLICT DO NOTHING
RETURNING id
""")

# In one order, against deadlocks. A complaint outranks a bounce, and both outrank the account's own entry; otherwise
# the older row stays.
_SUPPRESS: Final = statement("""
INSERT INTO suppressions (account_id, email, reason, code, response, at)
SELECT account_id, email, reason, code, response, :now
FROM unnest(:account_ids::uuid[], :emails::text[], :reasons::text[], :codes::smallint[], :responses::text[])
    given(account_id, email, reason, code, response)
ORDER BY account_id, email
ON CONFLICT (account_id, email) DO UPDATE
    SET reason = excluded.reason, code = excluded.code, response = excluded.response, at = excluded.at
    WHERE suppressions.reason = 'manual' OR (suppressions.reason = 'bounce' AND excluded.reason = 'complaint')
RETURNING 1
""")


async def lock(tx: Connection, message_id: UUID, account_tail: bytes) -> ReportedMessage | None:
    """The message that a token names; None if it doesn't exist (any more). Its other reports wait for this lock."""
    # An advisory lock, by the random end of the message's id: a lock on its row would make delivery wait.
    await tx.execute(_LOCK, int.from_bytes(message_id.bytes[-8:], "big", signed=True))
    rows = await tx.fetch(_FIND, message_id, account_tail)
    if not rows:
        return None
    return ReportedMessage(
        rows[0]["account_id"], {row["position"]: row["email"] for row in rows}, rows[0]["complainer"]
    )


async def taken_by(
    tx: Connection, account_id: AccountId, message_id: MessageId, address: IPv4Address | IPv6Address
) -> frozenset[int]:
    """The positions of the recipients whose message the server at this address took."""
    return frozenset([row["position"] for row in await tx.fetch(_TAKEN, account_id, message_id, str(address))])


async def add_reports(
    tx: Connection, account_id: AccountId, message_id: MessageId, notes: Sequence[ReportNote], now: datetime
) -> list[ReportNote]:
    """Store the reports that are new, up to the bound; return them."""
    by_id = {_id(note): note for note in notes}
    rows = await tx.fetch(
        *_NOTE.bind(
            account_id=account_id,
            message_id=message_id,
            now=now,
            reports_max=REPORTS_A_MESSAGE_MAX,
            ids=[_id(note) for note in notes],
            positions=[note.position for note in notes],
            kinds=[note.kind for note in notes],
            details=[storable(note.detail, TEXT_CHARACTERS_MAX) for note in notes],
            statuses=[storable(note.status) for note in notes],
            codes=[note.code for note in notes],
            responses=[storable(note.response, TEXT_CHARACTERS_MAX) for note in notes],
            suppressed=[note.suppress for note in notes],
            shared=[note.is_shared for note in notes],
        )
    )
    return [by_id[row["id"]] for row in rows]


async def suppress(tx: Connection, suppressions: Sequence[NewSuppression], now: datetime) -> int:
    """Suppress these addresses for their accounts; return how many are new or now have a higher rank."""
    chosen: dict[tuple[AccountId, str], NewSuppression] = {}
    for suppression in suppressions:
        key = suppression.account_id, suppression.email.lower()
        if key not in chosen or suppression.reason == "complaint":
            chosen[key] = suppression
    if not chosen:
        return 0
    rows = await tx.fetch(
        *_SUPPRESS.bind(
            now=now,
            account_ids=[account_id for account_id, _ in chosen],
            emails=[email for _, email in chosen],
            reasons=[suppression.reason for suppression in chosen.values()],
            codes=[suppression.code for suppression in chosen.values()],
            responses=[storable(suppression.response, TEXT_CHARACTERS_MAX) for suppression in chosen.values()],
        )
    )
    return len(rows)


def _id(note: ReportNote) -> UUID:
    """The id of the report: the same report always gets the same id, so a repetition conflicts with the first."""
    return UUID(bytes=blake2b(json.dumps(note.duplicate_key).encode(), digest_size=16).digest())
