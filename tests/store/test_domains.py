"""Domains as rows: which are due for a look at DNS, and what a look may change."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from posthouse.rules.ids import AccountId, DomainId
from posthouse.store import accounts, domains
from posthouse.store.domains import DomainRow
from posthouse.store.postgres import Connection, Database

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


async def new_account(tx: Connection, name: str = "Acme") -> AccountId:
    account_id = AccountId(uuid4())
    await accounts.insert(tx, account_id, name, NOW)
    return account_id


def domain_of(account_id: AccountId, name: str = "example.com") -> DomainRow:
    return DomainRow(
        account_id=account_id,
        id=DomainId(uuid4()),
        name=name,
        token="token",
        selector="ph1",
        dkim_public="MIIB",
        created_at=NOW,
        verified_at=None,
        checked_at=None,
        missing_since=None,
        dkim_sealed=b"sealed",
        ed25519_selector="pe1",
        ed25519_public="32BYTES=",
        ed25519_sealed=b"sealed too",
    )


OLD = {"ed25519_selector": None, "ed25519_public": None, "ed25519_sealed": None}


async def test_a_domain_reads_back_as_it_was_written(database: Database) -> None:
    async with database.transaction() as tx:
        row = domain_of(await new_account(tx))
        assert await domains.insert(tx, row, NOW + HOUR)
        assert await domains.find(tx, row.account_id, "example.com") == row
        assert await domains.list_of_account(tx, row.account_id, 10) == [row]
        assert (await accounts.lock(tx, row.account_id)).changed_at == NOW + HOUR
    assert "sealed" not in repr(row)


async def test_an_account_has_a_domain_once_and_two_accounts_may_have_the_same(database: Database) -> None:
    async with database.transaction() as tx:
        one, other = await new_account(tx), await new_account(tx, "other")
        assert await domains.insert(tx, domain_of(one), NOW)
        assert not await domains.insert(tx, domain_of(one), NOW)
        assert await domains.insert(tx, domain_of(other), NOW)


async def test_only_verified_domains_last_checked_long_ago_are_due(database: Database) -> None:
    async with database.transaction() as tx:
        account_id = await new_account(tx)
        long_ago = replace(domain_of(account_id, "old.example"), verified_at=NOW, checked_at=NOW - 30 * HOUR)
        lately = replace(domain_of(account_id, "new.example"), verified_at=NOW, checked_at=NOW - HOUR)
        vouched = replace(domain_of(account_id, "vouched.example"), verified_at=NOW - 90 * HOUR)
        unverified = replace(domain_of(account_id, "un.example"), checked_at=NOW - 90 * HOUR)
        for row in (long_ago, lately, vouched, unverified):
            await domains.insert(tx, row, NOW)
        assert vouched.is_vouched_for
        assert not lately.is_vouched_for
        assert await domains.due_for_check(tx, NOW - 24 * HOUR, 10) == [long_ago]


async def test_a_check_is_recorded_and_stamps_the_account_only_when_something_changed(database: Database) -> None:
    async with database.transaction() as tx:
        row = domain_of(await new_account(tx))
        await domains.insert(tx, row, NOW)
        assert await domains.record_check(tx, row, NOW, None, NOW, False, NOW + HOUR)
        verified = await domains.find(tx, row.account_id, row.name)
        assert verified == replace(row, verified_at=NOW, checked_at=NOW)
        assert (await accounts.lock(tx, row.account_id)).changed_at == NOW + HOUR
        assert await domains.record_check(tx, verified, NOW, None, NOW + 2 * HOUR, False, NOW + 2 * HOUR)
        assert (await accounts.lock(tx, row.account_id)).changed_at == NOW + HOUR
        verified = await domains.find(tx, row.account_id, row.name)
        assert verified is not None
        assert await domains.record_check(tx, verified, NOW, None, NOW + 3 * HOUR, True, NOW + 3 * HOUR)
        assert (await accounts.lock(tx, row.account_id)).changed_at == NOW + 3 * HOUR


async def test_a_check_does_not_overwrite_what_was_found_meanwhile(database: Database) -> None:
    async with database.transaction() as tx:
        row = domain_of(await new_account(tx))
        await domains.insert(tx, row, NOW)
        assert await domains.record_check(tx, row, NOW, None, None, True, NOW)  # somebody vouched for it
        assert not await domains.record_check(tx, row, None, None, NOW, False, NOW)
        found = await domains.find(tx, row.account_id, row.name)
        assert found is not None
        assert found.is_vouched_for


async def test_an_older_domain_gets_its_ed25519_key_once(database: Database) -> None:
    async with database.transaction() as tx:
        account_id = await new_account(tx)
        old = replace(domain_of(account_id, "old.example"), **OLD)  # type: ignore[arg-type]
        for row in (old, domain_of(account_id, "new.example")):
            await domains.insert(tx, row, NOW)
        assert await domains.without_ed25519(tx, 10) == [old]
        await domains.set_ed25519(tx, old, "pe2", "PUBLIC", b"first")
        await domains.set_ed25519(tx, old, "pe3", "OTHER", b"second")
        assert await domains.without_ed25519(tx, 10) == []
        given = replace(old, ed25519_selector="pe2", ed25519_public="PUBLIC", ed25519_sealed=b"first")
        assert await domains.find(tx, account_id, old.name) == given
        # A check that began before the key was there knows nothing of it.
        assert not await domains.record_check(tx, old, NOW, None, NOW, False, NOW)
        assert await domains.record_check(tx, given, NOW, None, NOW, True, NOW)


@pytest.mark.parametrize(
    "change", [{"ed25519_selector": None}, {"ed25519_sealed": None}, {**OLD, "ed25519_published": True}]
)
async def test_half_an_ed25519_key_is_refused_by_the_table(database: Database, change: dict[str, object]) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        async with database.transaction() as tx:
            await domains.insert(tx, replace(domain_of(await new_account(tx)), **change), NOW)  # type: ignore[arg-type]
