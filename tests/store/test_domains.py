"""Domains as rows: which are due for a DNS check, and what a check may change."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from posthouse.rules.ids import AccountId, DomainId
from posthouse.store import accounts, domains
from posthouse.store.domains import DomainKeysRow, DomainRow, VerificationState
from posthouse.store.postgres import Connection, Database

# Ahead of the database's clock, which no stamp is before.
NOW = datetime(2126, 11, 15, 12, tzinfo=UTC)
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


WITHOUT_ED25519 = {"ed25519_selector": None, "ed25519_public": None, "ed25519_sealed": None}


async def test_a_domain_reads_back_as_it_was_written(database: Database) -> None:
    async with database.transaction() as tx:
        row = domain_of(await new_account(tx))
        assert await domains.insert(tx, row, NOW + HOUR)
        assert await domains.find(tx, row.account_id, "example.com") == row
        assert await domains.list_of_account(tx, row.account_id, 10) == [row]
        assert (await accounts.lock(tx, row.account_id)).changed_at == NOW + HOUR
    assert "sealed" not in repr(row)


async def test_a_check_is_recorded_and_stamps_the_account_only_when_something_changed(database: Database) -> None:
    async with database.transaction() as tx:
        row = domain_of(await new_account(tx))
        await domains.insert(tx, row, NOW)
        assert await domains.record_check(tx, row, VerificationState(NOW, None, NOW, False), NOW + HOUR)
        verified = await domains.find(tx, row.account_id, row.name)
        assert verified == replace(row, verified_at=NOW, checked_at=NOW)
        assert (await accounts.lock(tx, row.account_id)).changed_at == NOW + HOUR
        for now, is_published, changed_at in (
            (NOW + 2 * HOUR, False, NOW + HOUR),
            (NOW + 3 * HOUR, True, NOW + 3 * HOUR),
        ):
            assert verified is not None
            assert await domains.record_check(tx, verified, VerificationState(NOW, None, now, is_published), now)
            assert (await accounts.lock(tx, row.account_id)).changed_at == changed_at
            verified = await domains.find(tx, row.account_id, row.name)


async def test_a_check_does_not_overwrite_what_was_found_meanwhile(database: Database) -> None:
    async with database.transaction() as tx:
        row = domain_of(await new_account(tx))
        await domains.insert(tx, row, NOW)
        # An operator vouched for it.
        assert await domains.record_check(tx, row, VerificationState(NOW, None, None, True), NOW)
        assert not await domains.record_check(tx, row, VerificationState(None, None, NOW, False), NOW)
        found = await domains.find(tx, row.account_id, row.name)
        assert found is not None
        assert found.is_vouched_for


@pytest.mark.parametrize(
    "change", [{"ed25519_selector": None}, {"ed25519_sealed": None}, {**WITHOUT_ED25519, "ed25519_published": True}]
)
async def test_half_an_ed25519_key_is_refused_by_the_table(database: Database, change: dict[str, object]) -> None:
    with pytest.raises(asyncpg.CheckViolationError):
        async with database.transaction() as tx:
            await domains.insert(tx, replace(domain_of(await new_account(tx)), **change), NOW)  # type: ignore[arg-type]


def keys_of(domain: DomainRow, selector: str = "ph2", retired_at: datetime | None = None) -> DomainKeysRow:
    return DomainKeysRow(
        account_id=domain.account_id,
        domain_id=domain.id,
        selector=selector,
        dkim_public="NEW",
        ed25519_selector="pe" + selector[2:],
        ed25519_public="NEW32=",
        created_at=NOW,
        checked_at=NOW,
        retired_at=retired_at,
        dkim_sealed=None if retired_at else b"sealed again",
        ed25519_sealed=None if retired_at else b"sealed again, too",
    )


async def test_one_pair_of_keys_waits_and_takes_the_place_of_those_that_sign(database: Database) -> None:
    async with database.transaction() as tx:
        row = domain_of(await new_account(tx))
        await domains.insert(tx, row, NOW)
        waiting = keys_of(row)
        assert await domains.add_keys(tx, waiting)
        assert not await domains.add_keys(tx, keys_of(row, "ph3"))
        assert await domains.keys(tx, row.account_id, [row.id]) == {row.id: [waiting]}
        assert "sealed" not in repr(waiting)
        assert await domains.switch_keys(tx, row, waiting, True, NOW + HOUR)
        assert not await domains.switch_keys(tx, row, waiting, True, NOW + HOUR), "it was done already"
        switched = await domains.find(tx, row.account_id, row.name)
        assert switched is not None
        assert (switched.selector, switched.dkim_sealed) == ("ph2", b"sealed again")
        assert (switched.ed25519_selector, switched.ed25519_published) == ("pe2", True)
        (retired,) = (await domains.keys(tx, row.account_id, [row.id]))[row.id]
        assert (retired.selector, retired.retired_at, retired.dkim_sealed) == ("ph1", NOW + HOUR, None)
        assert (await accounts.lock(tx, row.account_id)).changed_at == NOW + HOUR
        # A check that began before knows nothing of the new keys.
        assert not await domains.record_check(tx, row, VerificationState(NOW, None, NOW, False), NOW)


async def test_keys_that_wait_are_due_after_a_while_on_verified_domains_only(database: Database) -> None:
    async with database.transaction() as tx:
        account_id = await new_account(tx)
        vouched = replace(domain_of(account_id, "vouched.example"), verified_at=NOW)
        for row in (vouched, domain_of(account_id, "unverified.example")):
            await domains.insert(tx, row, NOW)
            await domains.add_keys(tx, keys_of(row))
        assert await domains.due_for_keys(tx, NOW, 10) == []
        assert await domains.due_for_keys(tx, NOW + HOUR, 10) == [vouched]
        await domains.keys_checked(tx, keys_of(vouched), NOW + HOUR)
        assert await domains.due_for_keys(tx, NOW + HOUR, 10) == []


@pytest.mark.rule("REG-07")
async def test_pages_are_newest_first_and_of_one_account(database: Database) -> None:
    async with database.transaction() as tx:
        account_id, other = await new_account(tx), await new_account(tx, "other")
        ids = [DomainId(UUID(int=number)) for number in range(1, 4)]
        rows = [replace(domain_of(account_id, f"{each.int}.example"), id=each) for each in ids]
        for row in (*rows, domain_of(other)):
            await domains.insert(tx, row, NOW)
        assert await domains.page(tx, account_id, None, 2) == [rows[2], rows[1]]
        assert await domains.page(tx, account_id, rows[1].id, 2) == [rows[0]]
        assert await domains.count(tx, account_id) == 3
