"""Sender domains: their proofs, their DKIM keys (sealed), and the result of the last DNS check.

A domain that is verified but was never checked (`checked_at` is null) was vouched for by an operator: no DNS
record proves it, so no daily check can end its verification.

The Ed25519 key signs only while its record is published, as far as we know: a signature that can't be checked is
useless.

A domain's row contains the keys that sign; signing reads nothing else. Other rows contain the pair whose records have
not been seen yet, if there is one, and the public halves of keys that signed before.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from posthouse.rules.ids import AccountId, DomainId
from posthouse.store.accounts import touch
from posthouse.store.postgres import Connection, Row, row_count, storable
from posthouse.store.statement import statement

# How much is stored of the values that a check found at a name.
FOUND_MAX: Final = 5
FOUND_CHARACTERS_MAX: Final = 500


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
    asked_at: datetime | None = None
    # The findings of the last check, see `findings_of`.
    findings: str | None = None
    dns_host: str | None = None
    # The operator's account that owns this domain, and whose keys sign; None for the account's own domain.
    shared_from: AccountId | None = None

    @property
    def is_shared(self) -> bool:
        return self.shared_from is not None

    @property
    def is_vouched_for(self) -> bool:
        return self.verified_at is not None and self.checked_at is None


@dataclass(frozen=True, slots=True)
class DomainKeysRow:
    """A pair of keys that doesn't sign: not yet, while it has private halves, or no longer, since `retired_at`."""

    account_id: AccountId
    domain_id: DomainId
    selector: str
    dkim_public: str
    ed25519_selector: str | None
    ed25519_public: str | None
    created_at: datetime
    checked_at: datetime
    retired_at: datetime | None = None
    dkim_sealed: bytes | None = field(default=None, repr=False)
    ed25519_sealed: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """What a check found about one record; `wanted` is the value that it should have had."""

    purpose: str
    name: str
    wanted: str
    result: str
    found: tuple[str, ...]
    advice: str
    at: datetime


@dataclass(frozen=True, slots=True)
class VerificationState:
    """The state of a domain after a DNS check, or when an operator vouches for it."""

    verified_at: datetime | None
    missing_since: datetime | None
    checked_at: datetime | None
    ed25519_published: bool


_GIVEN: Final = """
account_id, id, name, token, selector, dkim_public, created_at, verified_at, checked_at, missing_since, dkim_sealed,
ed25519_selector, ed25519_public, ed25519_sealed, ed25519_published, asked_at, shared_from
"""
_COLUMNS: Final = f"{_GIVEN}, findings, dns_host"
_KEYS_COLUMNS: Final = """
account_id, domain_id, selector, dkim_public, ed25519_selector, ed25519_public, created_at, checked_at, retired_at,
dkim_sealed, ed25519_sealed
"""

_INSERT: Final = statement(f"""
INSERT INTO domains ({_GIVEN})
VALUES (:account_id, :id, :name, :token, :selector, :dkim_public, :created_at,
    :verified_at, :checked_at, :missing_since, :dkim_sealed, :ed25519_selector, :ed25519_public, :ed25519_sealed,
    :ed25519_published, :asked_at, :shared_from)
ON CONFLICT (account_id, name) DO NOTHING RETURNING id
""")
_BY_NAME: Final = f"""
SELECT {_COLUMNS} FROM domains WHERE account_id = $1 AND name = $2
"""
# A domain that is no longer shared stays only for the audit.
_SHOWN: Final = "account_id = $1 AND (shared_from IS NULL OR verified_at IS NOT NULL)"
_LIST: Final = f"""
SELECT {_COLUMNS} FROM domains WHERE {_SHOWN} ORDER BY name LIMIT $2
"""
_PAGE: Final = f"""
SELECT {_COLUMNS} FROM domains WHERE {_SHOWN} AND ($2::uuid IS NULL OR id < $2) ORDER BY id DESC LIMIT $3
"""
_COUNT: Final = "SELECT count(*) FROM domains WHERE account_id = $1 AND shared_from IS NULL"
_DELETE: Final = "DELETE FROM domains WHERE account_id = $1 AND name = $2 RETURNING id"
# A domain that was never checked has no checked_at to compare, and so is never due.
_DUE: Final = f"""
SELECT {_COLUMNS} FROM domains WHERE verified_at IS NOT NULL AND checked_at < $1 ORDER BY checked_at LIMIT $2
"""
# Includes domains that an operator vouched for: this check is only about pending keys, and ends no verification.
_DUE_FOR_KEYS: Final = f"""
SELECT {", ".join(f"d.{column.strip()}" for column in _COLUMNS.split(","))}
FROM domain_keys k JOIN domains d ON d.account_id = k.account_id AND d.id = k.domain_id
WHERE k.retired_at IS NULL AND k.checked_at < $1 AND d.verified_at IS NOT NULL ORDER BY k.checked_at LIMIT $2
"""

# Check and update in one statement: of two simultaneous requests one has to wait.
_ASK: Final = statement("""
UPDATE domains SET asked_at = :now
WHERE account_id = :account_id AND id = :domain_id AND (asked_at IS NULL OR asked_at <= :last_before)
RETURNING id
""")
_ASKED: Final = "SELECT count(*) FROM domains WHERE account_id = $1 AND asked_at > $2"

_KEYS: Final = f"""
SELECT {_KEYS_COLUMNS} FROM domain_keys WHERE account_id = $1 AND domain_id = ANY($2::uuid[])
ORDER BY retired_at DESC NULLS FIRST
"""
_INSERT_KEYS: Final = statement(f"""
INSERT INTO domain_keys ({_KEYS_COLUMNS})
VALUES (:account_id, :domain_id, :selector, :dkim_public,
    :ed25519_selector, :ed25519_public, :created_at, :checked_at, :retired_at, :dkim_sealed, :ed25519_sealed)
ON CONFLICT DO NOTHING RETURNING selector
""")
_KEYS_CHECKED: Final = statement("""
UPDATE domain_keys SET checked_at = :now WHERE account_id = :account_id AND domain_id = :domain_id
    AND selector = :selector
""")
_TAKE_KEYS: Final = """
DELETE FROM domain_keys WHERE account_id = $1 AND domain_id = $2 AND selector = $3 AND retired_at IS NULL
RETURNING selector
"""
_FORGET_KEYS: Final = "DELETE FROM domain_keys WHERE retired_at <= $1"
_SWITCH: Final = statement("""
UPDATE domains SET selector = :selector, dkim_public = :dkim_public, dkim_sealed = :dkim_sealed,
    ed25519_selector = :ed25519_selector, ed25519_public = :ed25519_public,
    ed25519_sealed = :ed25519_sealed, ed25519_published = :ed25519_published
WHERE account_id = :account_id AND id = :domain_id AND selector = :old_selector
RETURNING id
""")

_UNSHARE: Final = """
UPDATE domains SET verified_at = NULL
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM domains WHERE shared_from IS NOT NULL AND name <> $1 AND verified_at IS NOT NULL
    LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING account_id
"""
_SHARE_AGAIN: Final = """
UPDATE domains SET verified_at = $3, shared_from = $2
WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM domains WHERE shared_from IS NOT NULL AND name = $1
      AND (verified_at IS NULL OR shared_from <> $2)
    LIMIT $4 FOR UPDATE SKIP LOCKED))
RETURNING account_id
"""
_ACCOUNTS_WITHOUT: Final = """
SELECT id FROM accounts
WHERE closed_at IS NULL AND NOT EXISTS (
    SELECT FROM domains WHERE account_id = accounts.id AND (name = $1 OR verified_at IS NOT NULL))
ORDER BY id LIMIT $2
"""

# The key's id is readable in the sealed value: a version byte, a length, the id.
_SEALED_WITH: Final = f"""
SELECT {_COLUMNS} FROM domains
WHERE convert_from(substring(dkim_sealed FROM 3 FOR get_byte(dkim_sealed, 1)), 'UTF8') = ANY($1::text[])
   OR convert_from(substring(ed25519_sealed FROM 3 FOR get_byte(ed25519_sealed, 1)), 'UTF8') = ANY($1::text[])
LIMIT $2
"""

_KEYS_SEALED_WITH: Final = f"""
SELECT {_KEYS_COLUMNS} FROM domain_keys
WHERE retired_at IS NULL
  AND (convert_from(substring(dkim_sealed FROM 3 FOR get_byte(dkim_sealed, 1)), 'UTF8') = ANY($1::text[])
    OR convert_from(substring(ed25519_sealed FROM 3 FOR get_byte(ed25519_sealed, 1)), 'UTF8') = ANY($1::text[]))
LIMIT $2
"""
_RESEAL_KEYS: Final = statement("""
UPDATE domain_keys SET dkim_sealed = :dkim_sealed, ed25519_sealed = :ed25519_sealed
WHERE account_id = :account_id AND domain_id = :domain_id AND selector = :selector AND retired_at IS NULL
""")

_RESEAL: Final = statement("""
UPDATE domains SET dkim_sealed = :dkim_sealed, ed25519_sealed = :ed25519_sealed
WHERE account_id = :account_id AND id = :domain_id AND dkim_sealed = :old_dkim_sealed
    AND ed25519_sealed IS NOT DISTINCT FROM :old_ed25519_sealed
""")

# Only if no other check was recorded meanwhile: DNS is asked outside any transaction.
_RECORD: Final = statement("""
UPDATE domains SET verified_at = :verified_at, missing_since = :missing_since, checked_at = :checked_at,
    ed25519_published = :ed25519_published, findings = coalesce(:findings::json, findings),
    dns_host = coalesce(:dns_host, dns_host)
WHERE account_id = :account_id AND id = :domain_id AND checked_at IS NOT DISTINCT FROM :old_checked_at
  AND verified_at IS NOT DISTINCT FROM :old_verified_at AND ed25519_public IS NOT DISTINCT FROM :ed25519_public
RETURNING id
""")


def findings_of(domain: DomainRow) -> list[StoredFinding]:
    return [
        StoredFinding(**{**entry, "found": tuple(entry["found"]), "at": datetime.fromisoformat(entry["at"])})
        for entry in json.loads(domain.findings or "[]")
    ]


def findings_text(findings: Iterable[StoredFinding]) -> str:
    """The findings in stored form; texts that were found come from the domain's owner, and are truncated."""
    return json.dumps(
        [
            {
                "purpose": finding.purpose,
                "name": finding.name,
                "wanted": finding.wanted,
                "result": finding.result,
                "found": [storable(value, FOUND_CHARACTERS_MAX) for value in finding.found[:FOUND_MAX]],
                "advice": storable(finding.advice),
                "at": finding.at.isoformat(),
            }
            for finding in findings
        ]
    )


def dkim_purpose(account_id: AccountId, domain_id: DomainId) -> bytes:
    """The purpose that a domain's private key is sealed for; it can't be opened for another."""
    return b"dkim:" + account_id.bytes + domain_id.bytes


def ed25519_purpose(account_id: AccountId, domain_id: DomainId) -> bytes:
    return b"dkim-ed25519:" + account_id.bytes + domain_id.bytes


async def insert(tx: Connection, domain: DomainRow, now: datetime) -> bool:
    """False if the account has the domain already."""
    inserted = await tx.fetchval(*_INSERT.bind_row(domain))
    await touch(tx, domain.account_id, now)
    return inserted is not None


async def unshare(tx: Connection, name: str, now: datetime, limit: int) -> int:
    """End the verification of shared domains with any other name; return how many changed."""
    return await _touch_each(tx, await tx.fetch(_UNSHARE, name, limit), now)


async def share_again(tx: Connection, source: DomainRow, now: datetime, limit: int) -> int:
    """Verify shared domains of this name, to be signed with the keys of this row; return how many changed."""
    return await _touch_each(tx, await tx.fetch(_SHARE_AGAIN, source.name, source.account_id, now, limit), now)


async def accounts_without(connection: Connection, name: str, limit: int) -> list[AccountId]:
    """Accounts that are not closed and have neither this domain nor any verified one."""
    return [row["id"] for row in await connection.fetch(_ACCOUNTS_WITHOUT, name, limit)]


async def _touch_each(tx: Connection, changed: Sequence[Row], now: datetime) -> int:
    for account_id in sorted({row["account_id"] for row in changed}):
        await touch(tx, account_id, now)
    return len(changed)


async def count(connection: Connection, account_id: AccountId) -> int:
    """The number of the account's own domains."""
    found: int = await connection.fetchval(_COUNT, account_id)
    return found


async def delete(tx: Connection, account_id: AccountId, name: str, now: datetime) -> bool:
    """Delete the domain with all its keys. False if the account has no such domain."""
    deleted = await tx.fetchval(_DELETE, account_id, name)
    await touch(tx, account_id, now)
    return deleted is not None


async def find(connection: Connection, account_id: AccountId, name: str) -> DomainRow | None:
    row = await connection.fetchrow(_BY_NAME, account_id, name)
    return None if row is None else DomainRow(**row)


async def list_of_account(connection: Connection, account_id: AccountId, limit: int) -> Sequence[DomainRow]:
    """The domains in the order of their names."""
    return [DomainRow(**row) for row in await connection.fetch(_LIST, account_id, limit)]


async def page(connection: Connection, account_id: AccountId, before: UUID | None, limit: int) -> Sequence[DomainRow]:
    """Those older than `before`, the newest first."""
    return [DomainRow(**row) for row in await connection.fetch(_PAGE, account_id, before, limit)]


async def take_turn(tx: Connection, domain: DomainRow, now: datetime, last_before: datetime) -> bool:
    """Whether DNS may be queried for the domain; if so, this counts as a query."""
    return (
        await tx.fetchval(
            *_ASK.bind(account_id=domain.account_id, domain_id=domain.id, now=now, last_before=last_before)
        )
        is not None
    )


async def asked_since(connection: Connection, account_id: AccountId, since: datetime) -> int:
    """How many domains of the account were checked on request since then."""
    asked: int = await connection.fetchval(_ASKED, account_id, since)
    return asked


async def due_for_check(connection: Connection, checked_before: datetime, limit: int) -> Sequence[DomainRow]:
    """Verified domains that were last checked before that time, the oldest check first."""
    return [DomainRow(**row) for row in await connection.fetch(_DUE, checked_before, limit)]


async def due_for_keys(connection: Connection, checked_before: datetime, limit: int) -> Sequence[DomainRow]:
    """Verified domains with keys whose records were last checked before that time."""
    return [DomainRow(**row) for row in await connection.fetch(_DUE_FOR_KEYS, checked_before, limit)]


async def keys(
    connection: Connection, account_id: AccountId, domain_ids: Sequence[DomainId]
) -> Mapping[DomainId, Sequence[DomainKeysRow]]:
    """The keys of these domains that don't sign: first the pending pair, then retired ones, the latest first."""
    found: dict[DomainId, list[DomainKeysRow]] = {domain_id: [] for domain_id in domain_ids}
    for row in await connection.fetch(_KEYS, account_id, list(domain_ids)):
        found[row["domain_id"]].append(DomainKeysRow(**row))
    return found


async def add_keys(tx: Connection, row: DomainKeysRow) -> bool:
    """False if the pair is to be pending, and another is pending already."""
    added = await tx.fetchval(*_INSERT_KEYS.bind_row(row))
    return added is not None


async def keys_checked(tx: Connection, row: DomainKeysRow, now: datetime) -> None:
    await tx.execute(
        *_KEYS_CHECKED.bind(account_id=row.account_id, domain_id=row.domain_id, selector=row.selector, now=now)
    )


async def switch_keys(
    tx: Connection, domain: DomainRow, waiting: DomainKeysRow, ed25519_published: bool, now: datetime
) -> bool:
    """The pending pair signs from now on, and the old pair is retired. False if either was changed meanwhile."""
    taken = await tx.fetchval(_TAKE_KEYS, waiting.account_id, waiting.domain_id, waiting.selector)
    switched = await tx.fetchval(
        *_SWITCH.bind_row(
            waiting,
            account_id=domain.account_id,
            domain_id=domain.id,
            old_selector=domain.selector,
            ed25519_published=ed25519_published,
        )
    )
    if taken is None or switched is None:
        return False
    retired = DomainKeysRow(
        account_id=domain.account_id,
        domain_id=domain.id,
        selector=domain.selector,
        dkim_public=domain.dkim_public,
        ed25519_selector=domain.ed25519_selector,
        ed25519_public=domain.ed25519_public,
        created_at=now,
        checked_at=now,
        retired_at=now,
    )
    await add_keys(tx, retired)
    await touch(tx, domain.account_id, now)
    return True


async def forget_keys(tx: Connection, retired_before: datetime) -> int:
    """Delete keys that were retired before that time; return how many pairs."""
    return row_count(await tx.execute(_FORGET_KEYS, retired_before))


async def sealed_with(connection: Connection, key_ids: Sequence[str], limit: int) -> Sequence[DomainRow]:
    """Domains with at least one private key that was sealed with one of these."""
    return [DomainRow(**row) for row in await connection.fetch(_SEALED_WITH, list(key_ids), limit)]


async def keys_sealed_with(connection: Connection, key_ids: Sequence[str], limit: int) -> Sequence[DomainKeysRow]:
    """Pending keys with at least one private half that was sealed with one of these."""
    return [DomainKeysRow(**row) for row in await connection.fetch(_KEYS_SEALED_WITH, list(key_ids), limit)]


async def reseal_keys(tx: Connection, row: DomainKeysRow, dkim_sealed: bytes, ed25519_sealed: bytes) -> None:
    await tx.execute(*_RESEAL_KEYS.bind_row(row, dkim_sealed=dkim_sealed, ed25519_sealed=ed25519_sealed))


async def reseal(tx: Connection, domain: DomainRow, dkim_sealed: bytes, ed25519_sealed: bytes | None) -> None:
    await tx.execute(
        *_RESEAL.bind(
            account_id=domain.account_id,
            domain_id=domain.id,
            dkim_sealed=dkim_sealed,
            ed25519_sealed=ed25519_sealed,
            old_dkim_sealed=domain.dkim_sealed,
            old_ed25519_sealed=domain.ed25519_sealed,
        )
    )


async def record_check(
    tx: Connection,
    domain: DomainRow,
    check: VerificationState,
    now: datetime,
    findings: str | None = None,
    dns_host: str | None = None,
) -> bool:
    """Write the result of a check, unless the domain was checked, vouched for or given a key since it was read.

    Findings and the DNS host stay as they are if none are given.
    """
    recorded = await tx.fetchval(
        *_RECORD.bind_row(
            check,
            account_id=domain.account_id,
            domain_id=domain.id,
            old_checked_at=domain.checked_at,
            old_verified_at=domain.verified_at,
            ed25519_public=domain.ed25519_public,
            findings=findings,
            dns_host=dns_host,
        )
    )
    # The daily check of a healthy domain changes nothing that is cached.
    has_changed = (check.verified_at is None) != (domain.verified_at is None)
    if has_changed or check.ed25519_published != domain.ed25519_published:
        await touch(tx, domain.account_id, now)
    return recorded is not None
