"""Connections to PostgreSQL have a share for each account."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from posthouse.flows.shared.shared_database import SharedDatabase, count_for
from posthouse.rules.refusal import Code, Refusal


async def test_an_account_leaves_connections_to_others(database_url: str) -> None:
    database = await SharedDatabase.open(database_url, connections_max=6)

    async def hold(account: str, stack: AsyncExitStack) -> None:
        count_for(account)
        await stack.enter_async_context(database.connection())

    try:
        async with AsyncExitStack() as stack:
            for _ in range(4):
                await hold("noisy", stack)
            more = asyncio.create_task(hold("noisy", stack))
            await hold("other", stack)
            with pytest.raises(Refusal) as refused:
                await more
            assert refused.value.code is Code.TEMPORARY_FAILURE
            assert "in progress" in refused.value.text
    finally:
        await database.close()


async def test_a_holder_of_nothing_waits_only_for_storage(database_url: str) -> None:
    database = await SharedDatabase.open(database_url, connections_max=1)
    try:
        count_for("first")
        async with database.connection():
            count_for("second")
            with pytest.raises(Refusal) as refused:
                async with database.connection():
                    pass
            assert refused.value.code is Code.SERVICE_UNAVAILABLE
        async with database.connection() as connection:
            assert await connection.fetchval("SELECT 1") == 1
    finally:
        await database.close()
