"""Migrations: any address that the service takes, and any number of hands at once."""

import asyncio
import sys
from collections.abc import Callable

import asyncpg

from posthouse.store import revision, schema
from tools.private_postgres import PrivatePostgres


async def applied(url: str) -> str | None:
    connection = await asyncpg.connect(url)
    try:
        return await revision.applied(connection)
    finally:
        await connection.close()


def test_an_address_with_parameters_is_understood(postgres: PrivatePostgres) -> None:
    postgres.create_database("with_parameters")
    url = postgres.url("with_parameters") + "?sslmode=disable"
    assert asyncio.run(applied(url)) is None
    schema.migrate(url)
    assert asyncio.run(applied(url)) == revision.newest()


async def test_two_at_once_take_turns(postgres: PrivatePostgres) -> None:
    postgres.create_database("two_at_once")
    url = postgres.url("two_at_once")
    command = "import sys; from posthouse.store import schema; schema.migrate(sys.argv[1])"
    started = [await _python(command, url) for _ in range(2)]
    assert [await process.wait() for process in started] == [0, 0]
    assert await applied(url) == revision.newest()


async def _python(command: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", command, *arguments)


def test_a_migrated_database_stays_as_it_is(new_database: Callable[[], str]) -> None:
    url = new_database()
    schema.migrate(url)
    assert asyncio.run(applied(url)) == revision.newest()
