"""What tests that touch the world stand on: one private PostgreSQL, and fresh databases in it."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from hypothesis import settings as hypothesis_settings

from posthouse.clock import DatabaseClock
from posthouse.flows.upkeep import Retention, Upkeep
from posthouse.store.postgres import Database
from posthouse.store.schema import migrate
from posthouse.store.seal import Sealer
from posthouse.wire.dns import Resolver
from tools.private_postgres import PrivatePostgres

# Tests start the real command many times; compiling every library at each start would take most of it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine is no reason to fail; a failing example is printed with what reproduces it.
hypothesis_settings.register_profile("posthouse", deadline=None, print_blob=True)
hypothesis_settings.load_profile("posthouse")

TEMPLATE = "posthouse_template"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """A cluster of our own, with a migrated database in it that others are copied from."""
    with PrivatePostgres.start() as cluster:
        cluster.create_database(TEMPLATE)
        migrate(cluster.url(TEMPLATE))
        asyncio.run(_make_partitions(cluster.url(TEMPLATE)))
        yield cluster


async def _make_partitions(url: str) -> None:
    database = await Database.open(url, connections_max=1)
    upkeep = Upkeep(
        database=database,
        clock=DatabaseClock(),
        resolver=Resolver(),
        sealer=Sealer({"1": bytes(32)}, "1"),
        retention=Retention(30, 3),
    )
    await upkeep.make_partitions()
    await database.close()


@pytest.fixture(scope="session")
def new_database(postgres: PrivatePostgres) -> Callable[[], str]:
    """Makes an empty migrated database, with its partitions, and returns its URL."""
    numbers = itertools.count(1)

    def make() -> str:
        name = f"test_{next(numbers)}"
        postgres.create_database(name, TEMPLATE)
        return postgres.url(name)

    return make


@pytest.fixture
def database_url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await Database.open(database_url)
    yield opened
    await opened.close()
