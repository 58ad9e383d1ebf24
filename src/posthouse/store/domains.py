"""Sender domains: their proofs, their DKIM keys (sealed), and what the last look at DNS said.

A domain that is verified but was never checked (`checked_at` is null) is one that an operator vouched
for: no DNS record proves it, so no daily check can take it away.

The Ed25519 key is not there yet on a domain that is older than such keys, until upkeep has made one. It
signs only when its record is published, as far as we know: a signature that nobody can check is noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from posthouse.rules.ids import AccountId, DomainId
from posthouse.store.accounts import touch
from posthouse.store.postgres import Connection


@dataclass(frozen=True, slots=True)
class DomainRow:
    account_id: AccountId
    id: DomainId
    name: str
    token: str
    selector: str
    dkim_public: str
    created_at: datetime
    verified_at: datetime | None
    checked_at: datetime | None
    missing_since: datetime | None
    dkim_sealed: bytes = field(repr=False)
    ed25519_selector: str | None = None
    ed25519_public: str | None = None
    ed25519_sealed: bytes | None = field(default=None, repr=False)
    ed25519_published: bool = False

    @property
    def is_vouched_for(self) -> bool:
        return self.verified_at is not None and self.checked_at is None


_COLUMNS: Final = """
account_id, id, name, token, selector, dkim_public, created_at, verified_at, checked_at, missing_since, dkim_sealed,
ed25519_selector, ed25519_public, ed25519_sealed, ed25519_published
"""

_INSERT: Final = f"""
INSERT INTO domains ({_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT (account_id, name) DO NOTHING RETURNING id
"""
_BY_NAME: Final = f"""
SELECT {_COLUMNS} FROM domains WHERE account_id = $1 AND name = $2
"""
_LIST: Final = f"""
SELECT {_COLUMNS} FROM domains WHERE account_id = $1 ORDER BY name LIMIT $2
"""
# A domain that was never checked has no checked_at to compare, and so is never due.
_DUE: Final = f"""
SELECT {_COLUMNS} FROM domains WHERE verified_at IS NOT NULL AND checked_at < $1 ORDER BY checked_at LIMIT $2
"""

_WITHOUT_ED25519: Final = f"""
SELECT {_COLUMNS} FROM domains WHERE ed25519_sealed IS NULL ORDER BY account_id, id LIMIT $1
"""
_SET_ED25519: Final = """
UPDATE domains SET ed25519_selector = $3, ed25519_public = $4, ed25519_sealed = $5, ed25519_published = false
WHERE account_id = $1 AND id = $2 AND ed25519_sealed IS NULL
"""

# The key's id is readable in the sealed value: a version byte, a length, the id.
_SEALED_WITH: Final = f"""
SELECT {_COLUMNS} FROM domains
WHERE convert_from(substring(dkim_sealed FROM 3 FOR get_byte(dkim_sealed, 1)), 'UTF8') = ANY($1::text[])
   OR convert_from(substring(ed25519_sealed FROM 3 FOR get_byte(ed25519_sealed, 1)), 'UTF8') = ANY($1::text[])
LIMIT $2
"""

_RESEAL: Final = """
UPDATE domains SET dkim_sealed = $3, ed25519_sealed = $4
WHERE account_id = $1 AND id = $2 AND dkim_sealed = $5 AND ed25519_sealed IS NOT DISTINCT FROM $6
"""

# Only if nobody else wrote what they found meanwhile: DNS is asked outside any transaction.
_RECORD: Final = """
UPDATE domains SET verified_at = $3, missing_since = $4, checked_at = $5, ed25519_published = $8
WHERE account_id = $1 AND id = $2 AND checked_at IS NOT DISTINCT FROM $6
  AND verified_at IS NOT DISTINCT FROM $7 AND ed25519_public IS NOT DISTINCT FROM $9
RETURNING id
"""


def dkim_purpose(account_id: AccountId, domain_id: DomainId) -> bytes:
    """What a domain's private key is sealed for; it opens nowhere else."""
    return b"dkim:" + account_id.bytes + domain_id.bytes


def ed25519_purpose(account_id: AccountId, domain_id: DomainId) -> bytes:
    return b"dkim-ed25519:" + account_id.bytes + domain_id.bytes


async def insert(tx: Connection, domain: DomainRow, now: datetime) -> bool:
    """False when the account has the domain already."""
    inserted = await tx.fetchval(
        _INSERT,
        domain.account_id,
        domain.id,
        domain.name,
        domain.token,
        domain.selector,
        domain.dkim_public,
        domain.created_at,
        domain.verified_at,
        domain.checked_at,
        domain.missing_since,
        domain.dkim_sealed,
        domain.ed25519_selector,
        domain.ed25519_public,
        domain.ed25519_sealed,
        domain.ed25519_published,
    )
    await touch(tx, domain.account_id, now)
    return inserted is not None


async def find(connection: Connection, account_id: AccountId, name: str) -> DomainRow | None:
    row = await connection.fetchrow(_BY_NAME, account_id, name)
    return None if row is None else DomainRow(**row)


async def list_of_account(connection: Connection, account_id: AccountId, limit: int) -> Sequence[DomainRow]:
    """In the order of their names."""
    return [DomainRow(**row) for row in await connection.fetch(_LIST, account_id, limit)]


async def due_for_check(connection: Connection, checked_before: datetime, limit: int) -> Sequence[DomainRow]:
    """Verified domains whose records were last seen to before that time, the longest unseen first."""
    return [DomainRow(**row) for row in await connection.fetch(_DUE, checked_before, limit)]


async def without_ed25519(connection: Connection, limit: int) -> Sequence[DomainRow]:
    return [DomainRow(**row) for row in await connection.fetch(_WITHOUT_ED25519, limit)]


async def set_ed25519(tx: Connection, domain: DomainRow, selector: str, public: str, sealed: bytes) -> None:
    """Gives a domain the Ed25519 key that it lacks; no cache holds it before its record was seen."""
    await tx.execute(_SET_ED25519, domain.account_id, domain.id, selector, public, sealed)


async def sealed_with(connection: Connection, key_ids: Sequence[str], limit: int) -> Sequence[DomainRow]:
    """Domains of whose private keys at least one was sealed with one of these."""
    return [DomainRow(**row) for row in await connection.fetch(_SEALED_WITH, list(key_ids), limit)]


async def reseal(tx: Connection, domain: DomainRow, dkim_sealed: bytes, ed25519_sealed: bytes | None) -> None:
    await tx.execute(
        _RESEAL,
        domain.account_id,
        domain.id,
        dkim_sealed,
        ed25519_sealed,
        domain.dkim_sealed,
        domain.ed25519_sealed,
    )


async def record_check(
    tx: Connection,
    domain: DomainRow,
    verified_at: datetime | None,
    missing_since: datetime | None,
    checked_at: datetime | None,
    ed25519_published: bool,
    now: datetime,
) -> bool:
    """Writes what a check came to, unless the domain was checked, vouched for or given a key since it was read."""
    recorded = await tx.fetchval(
        _RECORD,
        domain.account_id,
        domain.id,
        verified_at,
        missing_since,
        checked_at,
        domain.checked_at,
        domain.verified_at,
        ed25519_published,
        domain.ed25519_public,
    )
    # The daily check of a healthy domain changes nothing that a cache holds.
    if (verified_at is None) != (domain.verified_at is None) or ed25519_published != domain.ed25519_published:
        await touch(tx, domain.account_id, now)
    return recorded is not None
