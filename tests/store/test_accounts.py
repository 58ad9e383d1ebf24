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


async def test_every_change_is_stamped_and_the_stamp_never_goes_back(database: Database) -> None:
    async with database.transaction() as tx:
        row = await made(tx)
        await accounts.touch(tx, row.id, LATER)
        await accounts.touch(tx, row.id, NOW)
        assert (await accounts.lock(tx, row.id)).changed_at == LATER


async def test_the_database_itself_refuses_a_balance_below_zero(database: Database) -> None:
    async with database.transaction() as tx:
        row = await made(tx)
    with pytest.raises(asyncpg.CheckViolationError):
        async with database.transaction() as tx:
            await accounts.grant(tx, row.id, uuid4(), -1, "mistake", LATER)
    async with database.connection() as connection:
        assert await accounts.granted(connection, row.id) == 0
