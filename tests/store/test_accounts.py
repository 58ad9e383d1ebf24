"""Accounts as rows: names are unique, every change is stamped, and the balance follows the grants."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from posthouse.rules.ids import AccountId
from posthouse.store import accounts
from posthouse.store.accounts import AccountRow
from posthouse.store.postgres import Connection, Database

# Ahead of the database's clock, which no stamp is before.
NOW = datetime(2126, 11, 15, 12, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)


async def made(tx: Connection, name: str = "Acme") -> AccountRow:
    row = await accounts.insert(tx, AccountId(uuid4()), name, NOW)
    assert row is not None
    return row


async def test_a_new_account_has_no_credits_and_the_services_limits(database: Database) -> None:
    async with database.transaction() as tx:
        row = await made(tx)
    assert (row.available, row.rate_per_second, row.rate_burst, row.warmup_limits) == (0, None, None, None)
    async with database.connection() as connection:
        assert await accounts.find_by_id(connection, row.id) == row
        assert await accounts.find_by_name(connection, "ACME") == row
        assert await accounts.find_by_name(connection, "other") is None
        assert await accounts.find_by_id(connection, AccountId(uuid4())) is None


async def test_a_name_is_taken_in_whatever_case(database: Database) -> None:
    async with database.transaction() as tx:
        await made(tx, "Acme")
        assert await accounts.insert(tx, AccountId(uuid4()), "ACME", NOW) is None


async def test_accounts_are_listed_by_name_and_no_more_than_asked_for(database: Database) -> None:
    async with database.transaction() as tx:
        for name in ("b", "C", "a"):
            await made(tx, name)
    async with database.connection() as connection:
        assert [row.name for row in await accounts.page(connection, "", 2)] == ["a", "b"]


async def test_every_change_is_stamped_and_the_stamp_never_goes_back(database: Database) -> None:
    async with database.transaction() as tx:
        row = await made(tx)
        await accounts.touch(tx, row.id, LATER)
        await accounts.touch(tx, row.id, NOW)
        assert (await accounts.lock(tx, row.id)).changed_at == LATER


async def test_a_suspension_has_a_reason_and_can_end(database: Database) -> None:
    async with database.transaction() as tx:
        row = await made(tx)
        await accounts.suspend(tx, row.id, "spam", LATER)
        assert await accounts.is_suspended(tx, row.id)
        held = await accounts.lock(tx, row.id)
        assert (held.suspended_at, held.suspended_reason, held.changed_at) == (LATER, "spam", LATER)
        await accounts.resume(tx, row.id, LATER)
        assert not await accounts.is_suspended(tx, row.id)


async def test_limits_are_stored_and_reset_to_the_services_own(database: Database) -> None:
    async with database.transaction() as tx:
        row = await made(tx)
        await accounts.set_limits(tx, row.id, 5, 10, True, (1, 2, 3), LATER)
        own = await accounts.lock(tx, row.id)
        assert (own.rate_per_second, own.rate_burst, own.warmup_exempt) == (5, 10, True)
        assert own.warmup_limits == (1, 2, 3)
        assert own.changed_at == LATER
        await accounts.set_limits(tx, row.id, None, None, False, None, LATER)
        again = await accounts.lock(tx, row.id)
        assert (again.rate_per_second, again.rate_burst, again.warmup_limits) == (None, None, None)


async def test_grants_and_the_balance_move_together(database: Database) -> None:
    async with database.transaction() as tx:
        row = await made(tx)
        assert await accounts.grant(tx, row.id, uuid4(), 100, "start", LATER) == 100
        assert await accounts.grant(tx, row.id, uuid4(), -30, "too many", LATER) == 70
        assert await accounts.granted(tx, row.id) == 70
        assert (await accounts.lock(tx, row.id)).changed_at == LATER


async def test_the_database_itself_refuses_a_balance_below_zero(database: Database) -> None:
    async with database.transaction() as tx:
        row = await made(tx)
    with pytest.raises(asyncpg.CheckViolationError):
        async with database.transaction() as tx:
            await accounts.grant(tx, row.id, uuid4(), -1, "mistake", LATER)
    async with database.connection() as connection:
        assert await accounts.granted(connection, row.id) == 0
