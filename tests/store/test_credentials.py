"""SMTP credentials and API keys as rows: hashes only, listed in order, revoked once."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_network
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from posthouse.rules.credential import Mode
from posthouse.rules.ids import AccountId, ApiKeyId, CredentialId
from posthouse.store import accounts, credentials
from posthouse.store.credentials import ApiKeyRow, CredentialRow, KeyCounts, LastUse
from posthouse.store.postgres import Connection, Database

# Ahead of the database's clock, which no stamp is before.
NOW = datetime(2126, 11, 15, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
# What a search in an index reads, and far from what a table of thousands of rows has.
FEW_BLOCKS = 30


async def new_account(tx: Connection, name: str = "Acme") -> AccountId:
    account_id = AccountId(uuid4())
    await accounts.insert(tx, account_id, name, NOW)
    return account_id


def credential_of(account_id: AccountId, username: str = "smtp_a", *, is_default: bool = True) -> CredentialRow:
    networks = (ip_network("192.0.2.0/24"), ip_network("2001:db8::/32"))
    return CredentialRow(account_id, CredentialId(uuid4()), username, "web", is_default, networks, NOW, None)


def key_of(owner: CredentialRow) -> ApiKeyRow:
    return ApiKeyRow(
        account_id=owner.account_id,
        id=ApiKeyId(uuid4()),
        credential_id=owner.id,
        hint="ph_test_…abcd",
        name="ci",
        mode=Mode.TEST,
        may_read=True,
        created_at=NOW,
        expires_at=LATER,
        revoked_at=None,
    )


async def test_an_account_has_one_default_credential(database: Database) -> None:
    async with database.transaction() as tx:
        account_id = await new_account(tx)
        await credentials.insert_credential(tx, credential_of(account_id), b"hash", NOW)
    with pytest.raises(asyncpg.UniqueViolationError):
        async with database.transaction() as tx:
            await credentials.insert_credential(tx, credential_of(account_id, "smtp_b"), b"hash", NOW)


async def test_keys_end_with_their_credential(database: Database) -> None:
    async with database.transaction() as tx:
        owner = credential_of(await new_account(tx))
        await credentials.insert_credential(tx, owner, b"hash", NOW)
        await credentials.insert_key(tx, replace(key_of(owner), expires_at=None), b"key hash", NOW)
        await credentials.revoke_credential(tx, owner.account_id, owner.id, LATER)
        (key,) = await credentials.list_keys(tx, owner.account_id, 10)
        assert key.revoked_at == LATER


async def test_a_use_is_written_without_changing_the_caches_and_never_goes_back(database: Database) -> None:
    async with database.transaction() as tx:
        owner = credential_of(await new_account(tx))
        key = key_of(owner)
        await credentials.insert_credential(tx, owner, b"hash", NOW)
        await credentials.insert_key(tx, key, b"key hash", NOW)
        for use in (LastUse(LATER, "192.0.2.1"), LastUse(NOW, "192.0.2.2")):
            unknown = ApiKeyId(uuid4())
            await credentials.credentials_used(tx, {(owner.account_id, owner.id): use})
            await credentials.keys_used(tx, {(owner.account_id, key.id): use, (owner.account_id, unknown): use})
        used: dict[str, Any] = {"last_used_at": LATER, "last_used_from": "192.0.2.1"}
        assert await credentials.list_credentials(tx, owner.account_id, 1) == [replace(owner, **used)]
        assert await credentials.find_key(tx, owner.account_id, key.id) == replace(key, **used)
        assert (await accounts.lock(tx, owner.account_id)).changed_at == NOW


async def blocks_read(connection: Connection, query: str, *arguments: object) -> int:
    """How many pages PostgreSQL reads to run the query."""
    (plan,) = json.loads(await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", *arguments))
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


async def test_no_query_under_the_accounts_lock_reads_what_has_ended(database: Database) -> None:
    async with database.transaction() as tx:
        owner = credential_of(await new_account(tx))
        await credentials.insert_credential(tx, owner, b"hash", NOW)
        await credentials.insert_key(tx, key_of(owner), b"key hash", NOW)
        for ending in ("revoked_at", "expires_at"):
            await tx.execute(
                f"""
                INSERT INTO api_keys
                    (account_id, id, credential_id, secret_hash, hint, name, mode, created_at, {ending})
                SELECT $1, gen_random_uuid(), $2, '{ending}'::bytea || n::text::bytea, 'h', 'n', 'live', $3, $3
                FROM generate_series(1, 5000) n
                """,
                owner.account_id, owner.id, NOW,
            )  # fmt: skip
        await tx.execute(
            """
            INSERT INTO credentials (account_id, id, username, secret_hash, name, created_at, revoked_at)
            SELECT $1, gen_random_uuid(), 'smtp_' || n, 'hash', 'web', $2, $2 FROM generate_series(1, 5000) n
            """,
            owner.account_id, NOW,
        )  # fmt: skip
    async with database.connection() as connection:
        for table in ("api_keys", "credentials"):
            await connection.execute(f"ANALYZE {table}")
        assert await credentials.count_keys(connection, owner.account_id, NOW) == KeyCounts(current=1, replaced=0)
        assert len(await credentials.live_credentials(connection, owner.account_id)) == 1
        live = owner.account_id, NOW
        assert await blocks_read(connection, credentials._COUNT_KEYS, *live) < FEW_BLOCKS
        assert await blocks_read(connection, credentials._LIVE_CREDENTIALS, owner.account_id) < FEW_BLOCKS
        of_credential = owner.account_id, owner.id, NOW
        assert await blocks_read(connection, credentials._REVOKE_KEYS_OF, *of_credential) < FEW_BLOCKS


async def test_ended_keys_are_deleted_the_oldest_first(database: Database) -> None:
    async with database.transaction() as tx:
        owner = credential_of(await new_account(tx))
        await credentials.insert_credential(tx, owner, b"hash", NOW)
        hour = timedelta(hours=1)
        ends = {"open": (None, None), "expired": (NOW - hour, None), "revoked": (LATER, NOW - 2 * hour)}
        for name, (expires_at, revoked_at) in {**ends, "working": (LATER, None)}.items():
            key = replace(key_of(owner), name=name, expires_at=expires_at, revoked_at=revoked_at)
            await credentials.insert_key(tx, key, key.id.bytes, NOW)
        for limit, left in ((1, ["expired", "open", "working"]), (10, ["open", "working"])):
            assert await credentials.delete_ended_keys(tx, NOW, limit) == 1
            assert sorted(row.name for row in await credentials.list_keys(tx, owner.account_id, 10)) == left
